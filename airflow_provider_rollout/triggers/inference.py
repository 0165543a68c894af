"""Waits for a rollout job without a worker slot.

Receives: JSON arguments, among them the job's handle and the ids of connections, never a secret.
Hands on: one event that says how the job ended.
Invariants: polls only; the job runs elsewhere. No call blocks the triggerer's loop. Losing the triggerer, or being run in two of them at
once, does not touch the job: the only writer here is a kill or the deadline, and both are safe to repeat. ``cleanup`` never cancels,
for it runs whenever a triggerer restarts.
The first event comes 10 s after the deferral at the earliest: Airflow (3.3) fails a task that resumes while its worker is still winding
up, which takes 5 s (apache/airflow issues 71580 and 72716).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_rollout.hooks.report import ProgressReport
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.hooks.watch import Job, Watcher

__all__ = ["MIN_DEFER_S", "InferenceTrigger"]

MIN_DEFER_S = 10.0
_KILL_AFTER_S = 25.0  # Airflow gives on_kill 30 s


class InferenceTrigger(BaseTrigger):
    """Polls one rollout job until it ends.

    Args:
        job: the job, as the JSON form of ``hooks.watch.Job``.
        vllm_conn_id: names the launcher's connection.
        aws_conn_id: how the job's state is reached on S3.
        poll_interval: seconds between two looks.
        deadline: time of day, in seconds since 1970, at which the job is cancelled.
        cancel_on_kill: whether killing the deferred task stops the job.
        deferred_at: time of day of the deferral.
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        vllm_conn_id: str | None,
        aws_conn_id: str | None,
        poll_interval: float = 10.0,
        deadline: float | None = None,
        cancel_on_kill: bool = True,
        deferred_at: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = dict(job)
        self.vllm_conn_id = vllm_conn_id
        self.aws_conn_id = aws_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.cancel_on_kill = cancel_on_kill
        self.deferred_at = time.time() if deferred_at is None else deferred_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, for the database and another process."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "job": self.job,
                "vllm_conn_id": self.vllm_conn_id,
                "aws_conn_id": self.aws_conn_id,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
                "cancel_on_kill": self.cancel_on_kill,
                "deferred_at": self.deferred_at,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll; yield one event when the job has ended, or when it cannot be seen any more."""
        event = await self._watcher().watch(
            poll_interval_s=self.poll_interval,
            deadline=self.deadline,
            say=ProgressReport(self.log, self.job.get("tags")),
        )
        # Between two machines the clocks may differ, so never more than the whole wait.
        await asyncio.sleep(min(MIN_DEFER_S, max(0.0, self.deferred_at + MIN_DEFER_S - time.time())))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """A person marked the deferred task failed or successful, or cleared it: stop the job, unless told otherwise."""
        what = "cancelling job %s" if self.cancel_on_kill else "its job %s goes on (cancel_on_kill=False)"
        await asyncio.to_thread(self.log.info, f"The task was killed; {what}", self.job["job_id"])
        if not self.cancel_on_kill:
            return
        await self._watcher().cancel(kill_after_s=_KILL_AFTER_S)

    def _watcher(self) -> Watcher:
        return Watcher(msgspec.convert(self.job, Job), hook=VllmHook(self.vllm_conn_id), aws_conn_id=self.aws_conn_id)
