"""A request to stop: who asks, how much time the documents in flight have, and the end of what does not stop by itself.

Receives: a signal's or a cancel's error.        Hands on: the same error, out of the blocks that it bounds.
Invariants: no block outlasts its bound, whatever a store or a server does. A second request leaves no grace; a cancel outweighs the signal
that came with it, so that the last record says who ended the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from airflow_provider_rollout.engine.exceptions import JobCancelledError, JobStoppedError

__all__ = ["Stop"]


@dataclass(slots=True)
class Stop:
    """A request to stop, with the error that the job ends with and the time given to documents in flight, in seconds."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    error: JobStoppedError | None = None
    grace_s: float = 0.0

    def ask(self, error: JobStoppedError, grace_s: float) -> None:
        """Ask to stop; a second request leaves no grace. A cancel outweighs the signal that came with it."""
        self.grace_s = 0.0 if self.error else grace_s
        if self.error is None or isinstance(error, JobCancelledError):
            self.error = error
        self.asked.set()

    @asynccontextmanager
    async def bounding(self, after_grace_s: float | None) -> AsyncIterator[None]:
        """End the block with the stop's error once one is asked for: so long after its grace, or with no grace at all (None)."""
        async with asyncio.TaskGroup() as group:
            end = group.create_task(self._end(after_grace_s))
            yield
            end.cancel()

    async def _end(self, after_grace_s: float | None) -> None:
        await self.asked.wait()
        if after_grace_s is not None:
            slept_s = 0.0
            while slept_s < self.grace_s:  # a second request shortens it
                await asyncio.sleep(0.1)
                slept_s += 0.1
            await asyncio.sleep(after_grace_s)
        if self.error is not None:
            raise self.error
