"""Stands between a job and its server, so that no process of the server outlives the job.

    python -I -S guard.py --parent PID --grace SECONDS -- COMMAND …

Receives: a command.        Hands on: its exit code, or 128 + signal; 70 when a process would not die.
How: two guards, the outer one a child of the job, the inner one a child of the outer. Each is a subreaper, so every process that the
server ever starts stays its descendant, also one that detaches itself; each asks the kernel for a signal when its parent dies, and
looks every half second besides. When the parent is gone, or the child has ended, it kills every descendant with SIGKILL. On SIGTERM
from a living parent the server gets SIGTERM first, and the grace time. So ``kill -9`` of the job or of either guard leaves nothing.
Invariants: imports only the standard library, and runs as a file, so that it starts in milliseconds and needs no package. Linux; on
other systems a process that detaches itself is not found.
Source: prctl(2), PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER; tried with vLLM 0.32.0, whose engine and worker processes outlive a
killed API server.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["EXIT_UNKILLABLE", "main"]

EXIT_UNKILLABLE = 70  # EX_SOFTWARE of sysexits.h
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.5
_KILL_S = 20.0  # a process that holds a GPU may take seconds to go; one in an uninterruptible wait never goes


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Run the command under two guards; the exit code."""
    at = list(arguments).index("--")
    options = dict(zip(arguments[:at:2], arguments[1:at:2], strict=True))
    command = list(arguments[at + 1 :])
    parent, grace_s = int(options["--parent"]), float(options["--grace"])
    wake = _become_guard()
    outer = os.getpid()
    inner = os.fork()
    if inner == 0:
        return _inner(command, outer, grace_s)
    return _keep(inner, parent, grace_s + 1.0, wake)


def _inner(command: list[str], parent: int, grace_s: float) -> int:
    signal.set_wakeup_fd(-1)
    wake = _become_guard()
    return _keep(_start(command), parent, grace_s, wake)


def _become_guard() -> int:
    """Set signals and prctl up; the descriptor that becomes readable when a signal has come."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return readable


def _start(command: list[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        _say(f"{command[0]}: no such program")
        os._exit(EXIT_NOT_FOUND)
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
    os._exit(EXIT_NOT_EXECUTABLE)


def _keep(child: int, parent: int, grace_s: float, wake: int) -> int:
    """Watch parent and child until one of them is gone or the grace time is over; then kill all descendants."""
    kill_at_s: float | None = None
    while True:
        code = _reap(child)
        if code is not None or os.getppid() != parent:
            break
        now_s = time.monotonic()
        if kill_at_s is not None and now_s >= kill_at_s:
            break
        select.select([wake], [], [], _LOOK_S if kill_at_s is None else min(_LOOK_S, kill_at_s - now_s))
        if _has_been_told(wake) and kill_at_s is None and os.getppid() == parent:
            kill_at_s = time.monotonic() + grace_s
            os.kill(child, signal.SIGTERM)
    left = _kill_descendants(child)
    if left:
        _say(f"processes {', '.join(map(str, left))} do not die; the GPU they hold is not free")
        return EXIT_UNKILLABLE
    return 128 + signal.SIGKILL if code is None else code


def _has_been_told(wake: int) -> bool:
    try:
        return any(number != signal.SIGCHLD for number in os.read(wake, 4096))
    except BlockingIOError:
        return False


def _reap(child: int) -> int | None:
    """Collect what has ended; the exit code of the child if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code


def _kill_descendants(child: int) -> list[int]:
    """Kill until none is left; those that are left after all."""
    give_up_at_s = time.monotonic() + _KILL_S
    _kill_group(child)
    while True:
        _reap(0)
        left = _descendants()
        if not left or time.monotonic() >= give_up_at_s:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def _kill_group(leader: int) -> None:
    try:
        if os.getpgid(leader) == leader:
            os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _descendants() -> list[int]:
    """All processes below this one, zombies of others included, for their parents have yet to be killed."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _say(text: str) -> None:
    os.write(2, f"guard: {text}\n".encode(errors="replace"))


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
