"""What the process launcher starts: the command line, which leaves its exit code behind.

Receives: the arguments of ``airflow-rollout`` and, in ROLLOUT_EXIT_FILE, a path.        Hands on: the exit code, there and to the system.
Why: nobody waits for the job once its worker has gone, and an exit code that nobody waits for is lost. A job that is killed leaves none.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from airflow_provider_rollout.engine import cli

__all__ = ["main"]


def main(module: str | None = None) -> int:
    """Run the command line, or a module as ``python -m`` would, and note how it ended."""
    note = Path(os.environ.pop("ROLLOUT_EXIT_FILE"))
    code = 1
    try:
        if module is None:
            code = cli.main()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        whole = note.with_suffix(".exit-new")
        whole.write_text(str(code))
        whole.replace(note)
    return code


if __name__ == "__main__":
    cli.leave(main())
