"""Tells a job's progress to the task's log and to Airflow's metrics, from whoever watches the job.

Receives: the watcher's looks, and the store of the job's state.        Hands on: one line per look; counters, gauges and timings.
Invariants: names are fixed: no id of a DAG, a run or a document is in a name, for each name is a series of its own for ever. DAG, task and
rank are tags, which plain StatsD drops. Counters grow by what is new since the last look, whoever looked: what has been told is noted in
the store before it is told, so that a restarted triggerer, or two of them, do not count twice. Metrics that are off cost nothing, and what
goes wrong with them never touches the job or its watch. Lines and metrics leave by a thread: the log of a trigger is a socket that fills up
while the triggerer is busy, and the first metric of a process looks up the daemon's address.

The names are in ``COUNTERS``, ``GAUGES`` and ``TIMINGS``, each below ``rollout.``; the README tells what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats as airflow_stats

from airflow_provider_rollout.engine.exceptions import ObjectNotFoundError, RolloutError
from airflow_provider_rollout.engine.progress import AttemptRecord, Progress
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.hooks.watch import progress_line

if TYPE_CHECKING:
    from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["COUNTERS", "GAUGES", "TIMINGS", "ProgressReport", "Told"]

COUNTERS = (
    "documents_written", "documents_failed", "documents_dropped", "requests_sent", "requests_retried", "requests_failed", "cache_hits",
    "prompt_tokens", "completion_tokens",
)  # fmt: skip
GAUGES: dict[str, Callable[[AttemptRecord], float]] = {
    "in_flight": lambda record: record.queues.get("in_flight", 0),
    "waiting": lambda record: record.queues.get("waiting", 0),
    "requests_per_s": lambda record: record.rates_per_s.get("requests_succeeded", 0.0),
    "prompt_tokens_per_s": lambda record: record.rates_per_s.get("prompt_tokens", 0.0),
    "completion_tokens_per_s": lambda record: record.rates_per_s.get("completion_tokens", 0.0),
}
TIMINGS = ("server_start_duration", "job_duration")


class Told(msgspec.Struct, frozen=True):
    """What has been told of one job.

    Attributes:
        totals: the counters' sums.
        timings: the timings that were sent.
    """

    totals: dict[str, int] = msgspec.field(default_factory=dict)
    timings: list[str] = msgspec.field(default_factory=list)


class _Stats(Protocol):
    def incr(self, stat: str, count: int = 1, *, tags: Any = None) -> None: ...

    def gauge(self, stat: str, value: float, *, tags: Any = None) -> None: ...

    def timing(self, stat: str, dt: Any, *, tags: Any = None) -> None: ...


class ProgressReport:
    """Is told of every look at one job.

    Args:
        log: the task's or the trigger's.
        tags: go with every metric; of few values, so no run and no document.
        stats: where metrics go; by default to Airflow's own, if they are on.
    """

    def __init__(self, log: Any, tags: Mapping[str, str] | None = None, stats: Any = None) -> None:
        self._log = log
        self._tags = dict(tags or {})
        self._stats: _Stats | None = stats or (airflow_stats if _metrics_are_on() else None)

    async def __call__(self, progress: Progress, store: ObjectStore) -> None:
        """Log the line, and send what is new."""
        await asyncio.to_thread(self._show, progress)
        record = progress.record
        if record is None or self._stats is None:
            return
        try:
            await self._send(self._stats, record, store, ended=progress.ended)
        except (RolloutError, OSError) as error:
            await asyncio.to_thread(self._log.debug, "metrics of job %s were not sent: %s", record.job_id, error)

    def _show(self, progress: Progress) -> None:
        """What holds now; it may be told twice."""
        self._log.info("%s", progress_line(progress))
        if progress.record is None or self._stats is None:
            return
        for name, value_of in GAUGES.items():
            value = 0.0 if progress.ended else value_of(progress.record)
            self._stats.gauge(f"rollout.{name}", value, tags=self._all_tags(progress.record))

    async def _send(self, stats: _Stats, record: AttemptRecord, store: ObjectStore, *, ended: bool) -> None:
        told, version = await _read(store, record.job_id)
        new = Told(
            {name: max(record.totals.get(name, 0), told.totals.get(name, 0)) for name in COUNTERS},
            sorted({*told.timings, *_timings(record, ended=ended)}),
        )
        if new == told:
            return
        await _note(store, record.job_id, new, version)
        await asyncio.to_thread(self._count, stats, record, told, new, ended=ended)

    def _count(self, stats: _Stats, record: AttemptRecord, told: Told, new: Told, *, ended: bool) -> None:
        """What is new since it was last told."""
        tags = self._all_tags(record)
        for name, total in new.totals.items():
            if total > told.totals.get(name, 0):
                stats.incr(f"rollout.{name}", total - told.totals.get(name, 0), tags=tags)
        for name, seconds in _timings(record, ended=ended).items():
            if name not in told.timings:
                stats.timing(f"rollout.{name}", 1000.0 * seconds, tags=tags)

    def _all_tags(self, record: AttemptRecord) -> dict[str, str]:
        return {**self._tags, "rank": str(record.rank)}


def _timings(record: AttemptRecord, *, ended: bool) -> dict[str, float]:
    found = {} if record.server_start_s is None else {"server_start_duration": record.server_start_s}
    return {**found, "job_duration": record.elapsed_s} if ended else found


async def _read(store: ObjectStore, job_id: str) -> tuple[Told, str | None]:
    try:
        data, info = await store.get_with_info(layout.reported(job_id))
    except ObjectNotFoundError:
        return Told(), None
    return msgspec.json.decode(data, type=Told), info.version


async def _note(store: ObjectStore, job_id: str, told: Told, version: str | None) -> None:
    """Whoever loses against another watcher raises here and sends nothing."""
    key, data = layout.reported(job_id), msgspec.json.encode(told)
    if version is None:
        await store.create(key, data)
    else:
        await store.replace(key, data, version)


def _metrics_are_on() -> bool:
    return any(conf.getboolean("metrics", name, fallback=False) for name in ("statsd_on", "otel_on"))
