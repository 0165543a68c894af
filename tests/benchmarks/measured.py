"""What every contestant shares: its arguments, the request it makes of a document, and the report of what it cost.

Receives: a command line; a block of work.        Hands on: one JSON line on stdout, for the script that started the process; a profile
of the block if asked for.
Invariants: imports are outside the block; threads count, child processes do not. Imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def contestant_parser() -> argparse.ArgumentParser:
    """The arguments that all contestants take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("source", help="a JSONL file with a text per line")
    parser.add_argument("--model", default="m")
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--rollouts", type=int, default=1)
    parser.add_argument("--profile", help="write a cProfile of the main thread to this file")
    parser.add_argument("--params", type=json.loads, default={"max_tokens": 600, "temperature": 0.7})
    return parser


def payload_of(text: str) -> dict[str, Any]:
    """The request that every contestant makes of a document; its parameters and the model come on top."""
    return {"messages": [{"role": "user", "content": text}]}


@contextmanager
def measured() -> Iterator[dict[str, Any]]:
    """Measure the block and print the result; what the block puts into the dict is printed too."""
    report: dict[str, Any] = {}
    before, began_s, loop_began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), time.thread_time()
    yield report
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    own = {"wall_s": wall_s, "cpu_s": cpu_s, "loop_cpu_s": time.thread_time() - loop_began_s}
    print(json.dumps({**own, "peak_mb": after.ru_maxrss / 1024, **report}), flush=True)


class Span:
    """From the first call to the last answer, in seconds since the process began to measure."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = self._began_s

    def called(self) -> None:
        """A request is about to be made."""
        if self._first_s is None:
            self._first_s = time.perf_counter()

    def answered(self) -> None:
        """A request was answered."""
        self._last_s = time.perf_counter()

    def report(self) -> dict[str, float]:
        """Before the first call, and from there to the last answer."""
        first_s = self._first_s or self._began_s
        return {"before_s": first_s - self._began_s, "calls_s": self._last_s - first_s}


@contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """Profile the main thread in the block, if there is a file to write to."""
    if path is None:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    yield
    profile.disable()
    profile.dump_stats(path)


class ThreadClock:
    """What each kind of thread has cost, as far as it was looked at while it lived; by its name without the number at its end."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, float]] = {}

    def look(self) -> None:
        """Take the time of all threads there are now."""
        names = {thread.native_id: thread.name.rstrip("0123456789").rstrip("_-") for thread in threading.enumerate()}
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                number, name = int(task.name), (task / "comm").read_text().strip()
                cpu_s = int((task / "schedstat").read_text().split()[0]) / 1e9
                self._seen[number] = (names.get(number, name.rstrip("0123456789")), cpu_s)

    def cpu_s(self) -> dict[str, float]:
        """Seconds by name."""
        sums: defaultdict[str, float] = defaultdict(float)
        for name, cpu_s in self._seen.values():
            sums[name] += cpu_s
        return dict(sums)
