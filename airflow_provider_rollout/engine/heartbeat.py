"""How a running attempt tells the world of itself, and hears from it.

Receives: metrics, and the state of the rooms.        Hands on: the attempt object every few seconds, the log table, the progress callback;
and from the store: the fence and the cancel marker.
Invariants: the last record says how the attempt ended, unless a newer attempt exists. A cancel reaches the job within one beat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from airflow_provider_rollout.engine.exceptions import (
    FencedError,
    JobCancelledError,
    JobStoppedError,
    RolloutError,
    ServerError,
    StoreError,
)
from airflow_provider_rollout.engine.failure_policy import FailureKeeper
from airflow_provider_rollout.engine.input_source import InputSource
from airflow_provider_rollout.engine.metrics import MetricsKeeper, Snapshot
from airflow_provider_rollout.engine.progress import AttemptRecord, JobState
from airflow_provider_rollout.engine.rank_run import RankRun
from airflow_provider_rollout.engine.stop import Stop
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import Checkpoint
from airflow_provider_rollout.engine.storage.manifest import RankManifest
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["Heartbeat"]

_log = logging.getLogger(__name__)

_REPORT_S = 1.0
_LAST_WORD_S = 4.0  # of an attempt that is to stop


class Serving(Protocol):
    """What the heartbeat needs to know of the servers."""

    server_start_s: float | None

    async def wait_ready(self) -> None:
        """Return when a server answers."""

    def log_tail(self) -> str | None:
        """The last lines of the servers' logs."""


class Heartbeat:
    """The status of one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        store: ObjectStore,
        failures: FailureKeeper,
        stop: Stop,
        *,
        log_interval_s: float,
        on_progress: Callable[[AttemptRecord], None] | None,
    ) -> None:
        self.attempt = attempt
        self.metrics = MetricsKeeper()
        self.failures = failures
        self._store = store
        self._stop = stop
        self._log_interval_s = log_interval_s
        self._on_progress = on_progress
        self._state: JobState = "running"
        self._serving: Serving | None = None
        self._run: RankRun | None = None
        self._source: InputSource | None = None
        self._committed_before = 0
        self._beating = asyncio.Lock()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Count what earlier attempts have committed."""
        for record in checkpoint.done.values():
            self._committed_before += record.counts.documents
            self.failures.resume(
                ended=record.counts.documents, failed=record.counts.failed, causes=record.counts.causes
            )

    def watch(self, run: RankRun, source: InputSource) -> None:
        """Report on this run from now on."""
        self._run, self._source = run, source

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beat for as long as the block runs; a fence ends the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._beat()), group.create_task(self._report())]
            try:
                yield
            finally:
                # A beat that is under way would overwrite the last record.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORD_S), self._beating:
                        tasks[0].cancel()
                for task in tasks:
                    task.cancel()

    @asynccontextmanager
    async def serving(self, dispatcher: Serving) -> AsyncIterator[None]:
        """Show the servers' start in the state; a server that does not become ready ends the block."""
        self._serving, self._state = dispatcher, "starting_server"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._wait_ready(dispatcher))
            yield
            waiting.cancel()

    def record(self) -> AttemptRecord:
        """The present status."""
        snapshot = self.metrics.snapshot()
        done = self._documents_done(snapshot)
        total = self._documents_total()
        draining = self._stop.error is not None
        return msgspec.structs.replace(
            self.attempt.record,
            state="draining" if draining else self._state,
            documents_total=total,
            documents_done=done,
            documents_resumed=self._documents_resumed(),
            totals=snapshot.totals,
            rates_per_s=snapshot.rates_per_s,
            queues=snapshot.queues,
            elapsed_s=snapshot.elapsed_s,
            server_start_s=self._serving.server_start_s if self._serving else None,
            eta_s=_eta_s(snapshot, done, total),
            top_causes=self.failures.top_causes(),
        )

    async def end(self, state: JobState, *, manifest: RankManifest) -> None:
        """Write the last record of an attempt that succeeded."""
        summary = {name: value for name, value in msgspec.structs.asdict(manifest).items() if name != "outputs"}
        await self._last(msgspec.structs.replace(self.record(), state=state, exit_code=0, manifest=summary))

    async def end_with(self, error: BaseException) -> None:
        """Write the last record of an attempt that an error ended; the error itself stays the caller's."""
        if isinstance(error, FencedError):
            return
        tail = self._serving.log_tail() if self._serving and isinstance(error, ServerError) else None
        record = msgspec.structs.replace(
            self.record(),
            state=_state_after(error),
            error=str(error) or type(error).__name__,
            error_class=type(error).__name__,
            exit_code=error.exit_code if isinstance(error, RolloutError) else 1,
            server_log_tail=tail,
        )
        try:
            async with asyncio.timeout(_LAST_WORD_S if self._stop.asked.is_set() else None):
                await self._last(record)
        except (StoreError, FencedError, TimeoutError) as unwritten:
            reason = str(unwritten) or f"{self._store.uri} does not answer"
            _log.warning("how attempt %d ended could not be written: %s", self.attempt.epoch, reason)

    async def _last(self, record: AttemptRecord) -> None:
        await self.attempt.beat(record)
        if self._on_progress is not None:
            self._on_progress(self.attempt.record)

    async def _beat(self) -> None:
        marker = layout.cancel(self.attempt.record.job_id)
        while True:
            was_asked = self._stop.asked.is_set()
            async with self._beating:
                await self.attempt.beat(self.record())
            if not isinstance(self._stop.error, JobCancelledError) and await self._store.exists(marker):
                self._stop.ask(
                    JobCancelledError(f"job {self.attempt.record.job_id} was cancelled; its state is kept"), 0.0
                )
            if was_asked:
                await asyncio.sleep(self.attempt.heartbeat_s)
                continue
            # A signal may belong to a cancel, so the marker is looked for at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.attempt.heartbeat_s):
                    await self._stop.asked.wait()

    async def _report(self) -> None:
        logged_s = 0.0
        while True:
            await asyncio.sleep(_REPORT_S)
            record = self.record()
            if self._on_progress is not None:
                self._on_progress(record)
            if record.elapsed_s - logged_s >= self._log_interval_s:
                logged_s = record.elapsed_s
                _log.info("%s", _table(record))

    async def _wait_ready(self, dispatcher: Serving) -> None:
        await dispatcher.wait_ready()
        self._state = "running"

    def _documents_resumed(self) -> int:
        return self._committed_before + (self._run.documents_resumed if self._run else 0)

    def _documents_done(self, snapshot: Snapshot) -> int:
        ended = (snapshot.totals.get(f"documents_{outcome}", 0) for outcome in ("written", "failed", "dropped"))
        return self._documents_resumed() + sum(ended)

    def _documents_total(self) -> int | None:
        if self._run is None or self._source is None:
            return self._committed_before or None
        if self._run.input_ended:
            return max(self._run.documents_read, self._run.checkpoint.end_number)
        return self._source.estimate_total(self._run.documents_read, self._run.read_to)


def _state_after(error: BaseException) -> JobState:
    if isinstance(error, JobCancelledError):
        return "cancelled"
    return (
        "interrupted" if isinstance(error, (JobStoppedError, asyncio.CancelledError, KeyboardInterrupt)) else "failed"
    )


def _eta_s(snapshot: Snapshot, done: int, total: int | None) -> float | None:
    rate_per_s = sum(
        snapshot.rates_per_s.get(f"documents_{outcome}", 0.0) for outcome in ("written", "failed", "dropped")
    )
    return None if total is None or not rate_per_s else max(total - done, 0) / rate_per_s


def _table(record: AttemptRecord) -> str:
    """Lifetime counts and five-minute rates, one line a metric."""
    names = sorted({*record.totals, *record.queues})
    lines = [f"{'metric':<24}{'total':>14}{'per s (5 min)':>16}{'now':>8}"]
    for name in names:
        total, rate, now = record.totals.get(name, ""), record.rates_per_s.get(name), record.queues.get(name, "")
        lines.append(f"{name:<24}{total:>14}{f'{rate:.2f}' if rate is not None else '':>16}{now:>8}")
    done = f"{record.documents_done} of {record.documents_total if record.documents_total is not None else 'unknown'} documents"
    return "\n".join(
        [f"rank {record.rank}, attempt {record.epoch}, {record.state}: {done} after {record.elapsed_s:.0f} s", *lines]
    )
