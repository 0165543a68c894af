"""A trigger that measures the event loop that it shares with all other triggers of a triggerer.

Receives: a folder.        Hands on: files there: ``begun``, and when there is a file ``enough``, ``measured``: how late the loop was, and
where it stood then, as JSON.
Invariants: lateness is what a sleep took too long, without what no trigger can help: the time in which the loop's thread, or one that it
waits for, stood ready and got no processor, and the interpreter's collections of garbage, which walk over all objects of the triggerer.
What remains are callbacks that take long, that wait for something, or that wait for another thread to let go of the interpreter. A thread
looks at the stack of a loop that is late, for Airflow's own code holds it up too: the runner of triggers writes its log into a socket that
its parent is to read.
Source: proc(5), /proc/…/schedstat: nanoseconds on a processor, nanoseconds ready without one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from airflow.triggers.base import BaseTrigger, TriggerEvent

_BEAT_S = 0.01
_LATE_S = 0.05


class LoopProbe(BaseTrigger):
    """Measures until it has been enough."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return "loop_probe.LoopProbe", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure, write, fire."""
        folder, excused, beats, late = Path(self.folder), Excused(), 0, []
        await asyncio.to_thread((folder / "begun").touch)
        with excused.watching(), Lookout() as lookout:
            while beats % 100 or not await asyncio.to_thread((folder / "enough").exists):
                due_s = lookout.expect(_BEAT_S)
                await asyncio.sleep(_BEAT_S)
                late_s = time.monotonic() - due_s
                own_s = late_s - excused.since_last_s()
                beats += 1
                if own_s > _LATE_S:
                    late.append({"own_s": own_s, "late_s": late_s, "stack": lookout.stack})
        await asyncio.to_thread((folder / "told").write_text, json.dumps({"beats": beats, "late": late}))
        await asyncio.to_thread((folder / "told").rename, folder / "measured")
        yield TriggerEvent("measured")


class Lookout:
    """A thread that sees where the loop stands when it is late.

    Attributes:
        stack: functions with their files, the innermost last; empty as long as the loop is in time.
    """

    def __init__(self) -> None:
        self.stack: list[str] = []
        self._loop = threading.get_ident()
        self._due_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def expect(self, after_s: float) -> float:
        """The loop is to be here again at this time."""
        self.stack, self._due_s = [], time.monotonic() + after_s
        return self._due_s

    def _look(self) -> None:
        while not self._ended.wait(_LATE_S / 2):
            due_s = self._due_s
            if time.monotonic() > due_s + _LATE_S:
                frames = traceback.extract_stack(sys._current_frames()[self._loop])
                if due_s == self._due_s:
                    self.stack = [f"{frame.filename}:{frame.name}" for frame in frames]


class Excused:
    """What no trigger can help, in seconds; made in the loop's thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._collected_s = self._begun_s = 0.0
        self._seen = self._unserved_s()

    def since_last_s(self) -> float:
        """Ready without a processor, whichever thread was so for the longest time, and collecting garbage; since the last call."""
        before, self._seen = self._seen, self._unserved_s()
        collected_s, self._collected_s = self._collected_s, 0.0
        return collected_s + max(unserved_s - before.get(name, 0.0) for name, unserved_s in self._seen.items())

    def _unserved_s(self) -> dict[str, float]:
        found = {}
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                found[thread.name] = int((thread / "schedstat").read_bytes().split()[1]) / 1e9
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Add up the collections of the block."""
        gc.callbacks.append(self._collect)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collect)

    def _collect(self, phase: str, _: object) -> None:
        # In the loop's own thread CPU time, for the rest is counted as ready without a processor already.
        now_s = time.thread_time() if threading.get_ident() == self._thread else time.perf_counter()
        if phase == "start":
            self._begun_s = now_s
        else:
            self._collected_s += now_s - self._begun_s
