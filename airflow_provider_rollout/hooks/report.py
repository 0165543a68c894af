"""Tells a job's progress to the task's log and to Airflow's metrics, from whoever watches the job.

Receives: the watcher's looks.        Hands on: one line per look; counters and gauges.
Invariants: names are fixed: no id of a DAG, a run or a document is in a name, for each name is a series of its own for ever; the rank is
a tag, which plain StatsD drops. Counters grow by what is new since the last look. A watcher that comes to a job that already runs counts
from there on, so that a restarted triggerer does not count twice.

Counters: ``rollout.documents_written|failed|dropped``, ``rollout.requests_sent|retried``, ``rollout.cache_hits``,
``rollout.prompt_tokens|completion_tokens``. Gauges: ``rollout.in_flight``, ``rollout.requests_per_s``, ``rollout.completion_tokens_per_s``.
"""

from __future__ import annotations

from typing import Any, Protocol

from airflow.sdk.observability import stats as airflow_stats

from airflow_provider_rollout.engine.progress import AttemptRecord, Progress
from airflow_provider_rollout.hooks.watch import progress_line

__all__ = ["ProgressReport"]

_COUNTERS = (
    "documents_written", "documents_failed", "documents_dropped", "requests_sent", "requests_retried", "cache_hits", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip


class _Stats(Protocol):
    def incr(self, stat: str, count: int = 1, *, tags: Any = None) -> None: ...

    def gauge(self, stat: str, value: float, *, tags: Any = None) -> None: ...


class ProgressReport:
    """Is told of every look at one job.

    Args:
        log: the task's or the trigger's.
        stats: where metrics go; Airflow's own by default.
    """

    def __init__(self, log: Any, stats: Any = airflow_stats) -> None:
        self._log = log
        self._stats: _Stats = stats
        self._counted: dict[str, int] | None = None

    def __call__(self, progress: Progress) -> None:
        """Log the line and send what is new."""
        self._log.info("%s", progress_line(progress))
        record = progress.record
        if record is None:
            self._counted = {}
            return
        totals = {name: record.totals.get(name, 0) for name in _COUNTERS}
        if self._counted is not None:
            self._count(totals, self._counted, record)
        self._counted = totals
        tags = {"rank": str(record.rank)}
        rates = record.rates_per_s
        self._stats.gauge("rollout.in_flight", record.queues.get("in_flight", 0), tags=tags)
        self._stats.gauge("rollout.requests_per_s", rates.get("requests_succeeded", 0.0), tags=tags)
        self._stats.gauge("rollout.completion_tokens_per_s", rates.get("completion_tokens", 0.0), tags=tags)

    def _count(self, totals: dict[str, int], counted: dict[str, int], record: AttemptRecord) -> None:
        for name, total in totals.items():
            new = total - counted.get(name, 0)
            if new > 0:
                self._stats.incr(f"rollout.{name}", new, tags={"rank": str(record.rank)})
