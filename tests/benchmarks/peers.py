"""The peers, each in an environment of its own below .cache.

Receives: nothing.        Hands on: the Python that runs the peer, or None and a sentence why there is none.
Invariant: an environment that is complete, with what is asked for today, is left alone. datatrove's server packages (vLLM, SGLang) are
not installed: it is asked to use an endpoint.
"""

from __future__ import annotations

import subprocess
import sys

from contest import ROOT

_DATATROVE = ROOT / ".cache" / "bench-datatrove"
_REQUIREMENTS = ["datatrove[io]==0.10.1", "aiofiles", "aiosqlite", "httpx", "orjson", "pandas", "xxhash", "zstandard"]


def datatrove_python() -> str | None:
    """The Python that has datatrove's InferenceRunner."""
    python = _DATATROVE / "bin" / "python"
    complete = _DATATROVE / "complete"
    wanted = "\n".join(_REQUIREMENTS)
    if not complete.exists() or complete.read_text(encoding="utf-8") != wanted:
        steps = [
            [sys.executable, "-m", "venv", "--clear", str(_DATATROVE)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *_REQUIREMENTS],
            [str(python), "-c", "import datatrove.pipeline.inference.run_inference"],
        ]
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"no datatrove: {' '.join(step[:5])} … said: {done.stderr.strip()[-500:]}", file=sys.stderr)
                return None
        complete.write_text(wanted, encoding="utf-8")
    return str(python)
