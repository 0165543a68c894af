"""How many requests may be in flight: a fixed ceiling, or one found by additive increase and multiplicative decrease.

Receives: who wants to send, and how it went.        Hands on: slots, first come, first served.
Invariants: a slot is a ``with`` block and so cannot leak; AdaptiveLimit is pure; requests of one window lower the limit only once.
Source: AIMD with slow start, RFC 5681; the clock of "one round trip" is replaced by counting windows. A step back that follows a step
forward is small, as in CUBIC (RFC 9438): a server that bears 32 is kept at 29 to 33 and not at 16 to 33.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from airflow_provider_rollout.engine.metrics import QueueSizesKeeper

__all__ = ["AdaptiveLimit", "SlotWindow"]

START_LIMIT = 8  # no burst into a server of unknown size; doubles with every window that passes
_STEP_BACK = 0.9  # the limit felt its way to one slot too many; what the server bears is just below
_FALL_BACK = 0.5  # refused again at once: the server bears far less, or less than it did


class AdaptiveLimit:
    """The number of requests in flight that the server bears.

    Attributes:
        limit: the number now.
        window_index: grows whenever the limit is lowered; a request remembers in which window it was sent.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._value = float(min(START_LIMIT, ceiling))
        self._is_starting = True
        self._lowered_to = 0.0
        self.window_index = 0

    @property
    def limit(self) -> int:
        """Requests in flight at most."""
        return int(self._value)

    def succeeded(self, *, was_full: bool) -> None:
        """A request came back well; the limit grows only where it was the limit that held others up."""
        if was_full:
            self._value = min(float(self._ceiling), self._value + (1.0 if self._is_starting else 1.0 / self._value))

    def overloaded(self, window_index: int) -> None:
        """A request of that window was refused for load, or timed out."""
        if window_index == self.window_index:
            self.window_index += 1
            has_felt_its_way = self._value >= self._lowered_to + 1.0
            self._is_starting = False
            self._value = max(1.0, self._value * (_STEP_BACK if has_felt_its_way else _FALL_BACK))
            self._lowered_to = self._value


class SlotWindow:
    """Slots for requests in flight: ``async with window`` holds one."""

    def __init__(self, ceiling: int, *, is_adaptive: bool, queues: QueueSizesKeeper) -> None:
        self._queues = queues
        self._ceiling = ceiling
        self._adaptive = AdaptiveLimit(ceiling) if is_adaptive else None
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Slots there are now."""
        return self._ceiling if self._adaptive is None else self._adaptive.limit

    @property
    def window_index(self) -> int:
        """The window that a request sent now belongs to."""
        return 0 if self._adaptive is None else self._adaptive.window_index

    async def __aenter__(self) -> None:
        """Hold one slot for as long as the block runs."""
        if self._waiting or self._in_use >= self.limit:
            with self._queues.track("waiting"):
                await self._wait()
        else:
            self._in_use += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_use -= 1
        self._hand_out()

    def succeeded(self) -> None:
        """A request came back well."""
        if self._adaptive is not None:
            self._adaptive.succeeded(was_full=self._in_use >= self._adaptive.limit)

    def overloaded(self, window_index: int) -> None:
        """A request of that window met an overloaded server."""
        if self._adaptive is not None:
            self._adaptive.overloaded(window_index)

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was ours already
                self._in_use -= 1
                self._hand_out()
            elif turn in self._waiting:  # or it has been passed over already
                self._waiting.remove(turn)
            raise

    def _hand_out(self) -> None:
        while self._waiting and self._in_use < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_use += 1
                turn.set_result(None)
