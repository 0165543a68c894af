"""Starts programs on demand and holds them, under a guard: nothing that they ever started outlives the test that asked for them.

    python -I -S guard.py --parent PID --grace 0.1 -- python process_holder.py     (``hold_processes`` does this)

Receives: one JSON object per line, ``{"command": […], "log": path}``.        Hands on: one pid per line.
Invariant: a held program is killed alone by its pid; what it leaves behind lives on until the holder ends, as on a machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Holder:
    """The far end of a running holder."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, command: list[str], log: Path) -> int:
        """Start a program in a session of its own; its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """The guard, above everything that was started."""
        return self._process.pid


@contextmanager
def hold_processes(environment: Mapping[str, str]) -> Iterator[Holder]:
    """Hold programs for as long as the block runs; all of them get this environment."""
    from airflow_provider_rollout.engine.serving import guard

    leash = [sys.executable, "-I", "-S", str(guard.__file__), "--parent", str(os.getpid()), "--grace", "0.1", "--"]
    with subprocess.Popen(
        [*leash, sys.executable, "-I", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(environment),
    ) as process:
        try:
            yield Holder(process)
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    """Start what is asked for until the asker hangs up."""
    held: list[subprocess.Popen[bytes]] = []
    threading.Thread(target=_collect, args=(held,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in sys.stdin:
        asked = json.loads(line)
        with Path(asked["log"]).open("ab") as log:
            child = subprocess.Popen(
                asked["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        held.append(child)
        print(child.pid, flush=True)


def _collect(held: list[subprocess.Popen[bytes]]) -> None:
    while True:
        for child in list(held):
            if child.poll() is not None:
                held.remove(child)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
