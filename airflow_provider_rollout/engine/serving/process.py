"""A server's process under its guard, from start to gone.

Receives: a command, an environment, a log file.        Hands on: its exit code, the tail of its log.
Invariants: output goes to the file without passing through the job, whatever its length and encoding. When the block ends, no
process of the server is left, or ServerExitedError is raised; the time that takes is bounded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_provider_rollout.engine.exceptions import ServerExitedError, ServerStartError
from airflow_provider_rollout.engine.serving import guard

__all__ = ["ServerProcess", "read_tail"]

GRACE_S = 5.0  # vLLM needs 0.1 to 2 s to stop its engine; after that it may wait for clients without end
_GUARD_S = 25.0  # the guard gives up on unkillable processes after 20 s
_TAIL_BYTES = 8192
_TAIL_LINES = 40


class ServerProcess:
    """One server process; an async context manager."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._log_path = log_path
        self._log_start = 0
        self._guard: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except OSError as error:
            raise ServerStartError(f"no process can be started with the log {self._log_path}: {error}") from None
        return self

    async def _start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", guard.__file__]
        command += ["--parent", str(os.getpid()), "--grace", str(GRACE_S), "--", *self._command]
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._guard = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def exit_code(self) -> int | None:
        """The server's exit code, 128 + signal when one ended it; None while it runs."""
        return None if self._guard is None else self._guard.returncode

    async def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, that long at most; the exit code, or None when it still runs."""
        try:
            async with asyncio.timeout(seconds):
                return await self._running().wait()
        except TimeoutError:
            return None

    def _running(self) -> asyncio.subprocess.Process:
        if self._guard is None:
            raise ServerExitedError("the server has not been started")
        return self._guard

    async def stop(self) -> None:
        """End the server and all that it started.

        Raises:
            ServerExitedError: one of its processes does not die.
        """
        running = self._running()
        try:
            if running.returncode is None:
                running.terminate()
            code = await self.wait(GRACE_S + _GUARD_S)
        finally:
            if running.returncode is None:
                running.kill()  # the inner guard sees it and kills all the same
        if code is None or code == guard.EXIT_UNKILLABLE:
            raise ServerExitedError(
                f"a process of the server does not die, and holds what it holds; see {self._log_path}, and restart the machine"
            )

    def log_tail(self) -> str:
        """The last lines that this process wrote."""
        return read_tail(self._log_path, start=self._log_start)


def read_tail(path: Path, *, start: int = 0) -> str:
    """The last lines of a log, 8 KiB at most; what is no UTF-8 is replaced."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:])
