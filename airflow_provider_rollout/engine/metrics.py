"""What the job counts: lifetime totals, rates over the last five minutes, and how much waits where.

Receives: counts from every room.        Hands on: Snapshot, which the heartbeat, the log table and the progress bar read.
Invariants: the clock is passed in; a gauge is a ``with`` block and so cannot leak; nothing is logged or sent from here.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

import msgspec

__all__ = ["MetricsKeeper", "QueueSizesKeeper", "Snapshot"]

WINDOW_S = 300.0  # the window of datatrove's rates
_BUCKET_S = 5.0


class Snapshot(msgspec.Struct, frozen=True):
    """Counts at one moment.

    Attributes:
        totals: lifetime count by name.
        rates_per_s: count per second over the last five minutes, by name.
        queues: how many wait or are at work, by queue name.
        elapsed_s: seconds since the keeper was made.
    """

    totals: dict[str, int]
    rates_per_s: dict[str, float]
    queues: dict[str, int]
    elapsed_s: float


class _Gauge:
    """A block that counts one more for as long as it runs; it keeps nothing of its own, so one serves all blocks of a name."""

    __slots__ = ("_name", "_sizes")

    def __init__(self, sizes: Counter[str], name: str) -> None:
        self._sizes = sizes
        self._name = name

    def __enter__(self) -> None:
        self._sizes[self._name] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sizes[self._name] -= 1


class QueueSizesKeeper:
    """Sizes of queues and numbers in flight."""

    def __init__(self) -> None:
        self.sizes: Counter[str] = Counter()
        self._gauges: dict[str, _Gauge] = {}

    def track(self, name: str) -> AbstractContextManager[None]:
        """Count one more in ``name`` for as long as the block runs."""
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = _Gauge(self.sizes, name)
        return gauge

    def set(self, name: str, size: int) -> None:
        """Say how many are in ``name`` now."""
        self.sizes[name] = size


class MetricsKeeper:
    """Lifetime totals and five-minute rates.

    The names in use: ``documents_written|failed|dropped``, ``bad_rows``, ``rollouts_failed``, ``requests_sent``,
    ``requests_succeeded``, ``requests_failed``, ``requests_retried``, ``cache_hits``, ``prompt_tokens``, ``completion_tokens``,
    ``truncated``, ``server_starts``, ``chunks_committed``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self.totals: Counter[str] = Counter()
        self.queues = QueueSizesKeeper()
        self._marks: deque[tuple[float, dict[str, int]]] = deque([(self._started_s, {})])

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a total."""
        self.totals[name] += amount

    def snapshot(self) -> Snapshot:
        """The counts now; call it at least every few seconds, for rates are taken between calls."""
        now_s = self._clock()
        if now_s - self._marks[-1][0] >= _BUCKET_S:
            self._marks.append((now_s, dict(self.totals)))
        while len(self._marks) > 1 and now_s - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        since_s, base = self._marks[0]
        span_s = max(now_s - since_s, 1e-9)
        rates = {name: (total - base.get(name, 0)) / span_s for name, total in self.totals.items()}
        return Snapshot(
            totals=dict(self.totals),
            rates_per_s=rates,
            queues=dict(self.queues.sizes),
            elapsed_s=now_s - self._started_s,
        )
