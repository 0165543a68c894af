"""Watching a job until it ends: the one loop behind the trigger and behind the waiting worker.

Receives: a Job, the store of its state, a hook.        Hands on: an event, a JSON object that says how the job ended.
Invariants: what a poll means is decided by ``engine.progress.judge``, with the watcher's own monotonic clock. A poll that fails is not a
job that fails: five in a row end the watch and leave the job alone. The launcher is asked before the record is read, so that "gone"
together with a record means that the record is the last one. Every call that blocks runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from airflow.sdk.exceptions import AirflowException

from airflow_provider_rollout.engine.exceptions import EXIT_DONE, RolloutError
from airflow_provider_rollout.engine.progress import AttemptRecord, Liveness, Progress, judge
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.hooks.store import open_store
from airflow_provider_rollout.hooks.vllm import KILL_AFTER_S, VllmHook

if TYPE_CHECKING:
    from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["Job", "Say", "Watcher", "job_of", "progress_line"]

MAX_FAILED_POLLS = 5
_FIRST_INTERVAL_S = 0.5  # a rank that is done already, or a wrong parameter, is seen at once
_LOOKS_AT_ONCE = 4
_TURN_WAIT_S = 2.0
_END_WAIT_S = 45.0  # a cancelled job flushes and stops its server within 30 s
_TAIL_CHARACTERS = 4000
_REASON_CHARACTERS = 1500


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is watched; crosses processes as JSON and holds no secret.

    Attributes:
        job_id: names the launch.
        rank: the rank it works on.
        checkpoints: URI of its state.
        handle: the launcher's, or None when the launch was not seen to succeed.
        lost_after_s: seconds of silence that mean lost.
        reattached: whether an earlier try of the task started it.
        tags: go with its metrics.
    """

    job_id: str
    rank: int
    checkpoints: str
    handle: dict[str, Any] | None
    lost_after_s: float = 60.0
    reattached: bool = False
    tags: dict[str, str] = {}


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

Say = Callable[[Progress, "ObjectStore"], Awaitable[None]]
"""Is told of a look."""


class Watcher:
    """Looks at one job, again and again.

    Args:
        job: the job.
        hook: knows its launcher.
        aws_conn_id: how its state is reached, if that is on S3.
        clock: monotonic seconds.
    """

    def __init__(
        self, job: Job, *, hook: VllmHook, aws_conn_id: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.job = job
        self._hook = hook
        self._aws_conn_id = aws_conn_id
        self._clock = clock
        self._store: ObjectStore | None = None
        self._version: str | None = None
        self._changed_s = clock()

    async def look(self, say: Say | None = None) -> Progress:
        """How the job stands now.

        Args:
            say: is told of it.

        Raises:
            RolloutError: its state cannot be read.
        """
        async with _turn():
            progress = await self._look()
        if say is not None:
            await say(progress, await self._open())
        return progress

    async def _look(self) -> Progress:
        store = await self._open()
        from airflow_provider_rollout.engine.storage.attempt import latest_attempt  # noqa: PLC0415 - imported by _open_store

        liveness = await self._liveness()
        newest = await latest_attempt(store, self.job.rank)
        record, version = (newest[0], newest[1].version) if newest else (None, None)
        if version != self._version:
            self._version, self._changed_s = version, self._clock()
        return judge(
            record,
            job_id=self.job.job_id,
            liveness=liveness,
            unchanged_s=self._clock() - self._changed_s,
            lost_after_s=self.job.lost_after_s,
        )

    async def watch(
        self,
        *,
        poll_interval_s: float,
        deadline: float | None,
        say: Say,
        stopped: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Look until the job has ended.

        Args:
            poll_interval_s: seconds between two looks; the first few follow one another faster.
            deadline: time of day in seconds since 1970 at which the job is cancelled, or None.
            say: is told of every look, with the store of the job's state.
            stopped: whether to leave the watch; looked at several times a second. None never leaves it.

        Returns:
            The event. Its ``status`` is a verdict of ``judge``, or "timeout", "error" (nobody can see the job) or "stopped".
        """
        failed, interval_s = 0, min(_FIRST_INTERVAL_S, poll_interval_s)
        while True:
            try:
                event = await self._step(deadline, say)
                failed = 0
            except (RolloutError, AirflowException, OSError) as error:
                failed += 1
                event = None
                if failed >= MAX_FAILED_POLLS:
                    event = self._event(
                        "error", f"{failed} looks at job {self.job.job_id} failed in a row, the last with: {error}"
                    )
            if event is not None:
                return event
            if await _pause(interval_s, deadline, stopped):
                return self._event("stopped", "the watcher was told to stop")
            interval_s = min(1.5 * interval_s, poll_interval_s)

    async def cancel(self, *, kill_after_s: float | None = KILL_AFTER_S) -> None:
        """Stop the job: a marker that reaches it on any machine, and its launcher's own way.

        Args:
            kill_after_s: seconds until it is ended by force; None only asks and does not wait.
        """
        store = await self._open()
        await store.put(layout.cancel(self.job.job_id), b"")
        if self.job.handle is not None:
            await asyncio.to_thread(self._hook.cancel, self.job.handle, kill_after_s=kill_after_s)

    async def describe(self, progress: Progress) -> dict[str, Any]:
        """The event for an end: with the job's exit code and the end of its log when it failed, as far as they can be had."""
        handle, record = self.job.handle, progress.record
        code = record.exit_code if record else None
        if code is None and handle is not None:
            code = await asyncio.to_thread(self._hook.exit_code, handle)
        status: str = progress.verdict
        if status == "lost" and code == EXIT_DONE:
            status = "succeeded"  # the rank was done already, and the job had nothing to claim
        tail: str | None = ""
        if status != "succeeded" and handle is not None:
            tail = (record.server_log_tail if record else None) or await asyncio.to_thread(self._hook.log_tail, handle)
        return self._event(
            status,
            progress.reason,
            exit_code=code,
            error_class=record.error_class if record else None,
            resumed=record.documents_resumed if record else 0,
            log_tail=(tail or "")[-_TAIL_CHARACTERS:],
        )

    async def _open(self) -> ObjectStore:
        if self._store is None:
            self._store = await asyncio.to_thread(_open_store, self.job.checkpoints, self._aws_conn_id)
        return self._store

    async def _liveness(self) -> Liveness:
        if self.job.handle is None:
            return "unknown"
        return await asyncio.to_thread(self._hook.status, self.job.handle)

    async def _step(self, deadline: float | None, say: Say) -> dict[str, Any] | None:
        progress = await self.look(say)
        if progress.ended:
            return await self.describe(progress)
        if deadline is not None and time.time() >= deadline:
            return await self._time_out(say)
        return None

    async def _time_out(self, say: Say) -> dict[str, Any]:
        await self.cancel()
        until_s = self._clock() + _END_WAIT_S
        progress = await self.look(say)
        while not progress.ended and self._clock() < until_s:
            await asyncio.sleep(1.0)
            progress = await self.look(say)
        if progress.verdict == "succeeded":
            return await self.describe(progress)
        return self._event("timeout", f"job {self.job.job_id} passed its deadline and was cancelled: {progress.reason}")

    def _event(self, status: str, reason: str, **more: Any) -> dict[str, Any]:
        return {
            "status": status,
            "reason": reason[:_REASON_CHARACTERS],
            "job": msgspec.to_builtins(self.job),
            "exit_code": None,
            "error_class": None,
            "resumed": 0,
            "log_tail": "",
            **more,
        }


@asynccontextmanager
async def _turn() -> AsyncIterator[None]:
    """A few looks at a time: hundreds of threads that are all at work hold up the loop that waits for them.

    Whoever has waited long goes ahead: a store that does not answer must not keep others from their jobs.
    """
    gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_LOOKS_AT_ONCE))
    has_turn = True
    try:
        async with asyncio.timeout(_TURN_WAIT_S):  # wait_for of Python 3.11 may swallow a cancellation
            await gate.acquire()
    except TimeoutError:
        has_turn = False
    try:
        yield
    finally:
        if has_turn:
            gate.release()


def _open_store(uri: str, aws_conn_id: str | None) -> ObjectStore:
    """Runs in a thread, with all imports that a watch needs: they take half a second."""
    import airflow_provider_rollout.engine.storage.attempt  # noqa: F401, PLC0415 - see above

    return open_store(uri, aws_conn_id)


async def _pause(interval_s: float, deadline: float | None, stopped: Callable[[], bool] | None) -> bool:
    """Wait for the next look, or less; True when told to stop."""
    until_s = time.monotonic() + interval_s
    if deadline is not None:
        until_s = min(until_s, time.monotonic() + max(0.0, deadline - time.time()))
    while (left_s := until_s - time.monotonic()) > 0:
        if stopped is not None and stopped():
            return True
        await asyncio.sleep(left_s if stopped is None else min(0.25, left_s))
    return stopped is not None and stopped()


def progress_line(progress: Progress) -> str:
    """One line for the task log."""
    record = progress.record
    if record is None:
        return progress.reason
    parts = [f"rank {record.rank} {record.state}", _documents(record)]
    rates = record.rates_per_s
    if rates.get("completion_tokens"):
        parts.append(
            f"{rates.get('requests_succeeded', 0.0):.1f} requests/s, {rates['completion_tokens']:.0f} tokens/s"
        )
    if record.queues.get("in_flight"):
        parts.append(f"{record.queues['in_flight']} in flight")
    counts = [("cache_hits", "cache hits"), ("documents_failed", "failed"), ("requests_retried", "retried")]
    parts += [f"{record.totals[name]} {what}" for name, what in counts if record.totals.get(name)]
    if record.top_causes:
        parts.append("causes " + ", ".join(f"{cause}: {count}" for cause, count in record.top_causes.items()))
    if record.eta_s is not None and not progress.ended:
        parts.append(f"{record.eta_s / 60:.0f} min left" if record.eta_s >= 60 else f"{record.eta_s:.0f} s left")  # noqa: PLR2004 - a minute
    if progress.ended and progress.verdict != "succeeded":
        parts.append(progress.reason)
    return "; ".join(parts)


def _documents(record: AttemptRecord) -> str:
    total = "" if record.documents_total is None else f" of {record.documents_total}"
    resumed = f" ({record.documents_resumed} from earlier attempts)" if record.documents_resumed else ""
    return f"{record.documents_done}{total} documents{resumed}"


def job_of(event: Mapping[str, Any]) -> Job:
    """The job that an event is about."""
    return msgspec.convert(event["job"], Job)
