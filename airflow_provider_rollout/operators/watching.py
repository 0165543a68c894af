"""Waiting for a job, in the triggerer or in the worker, and leaving the wait when the task is told to end.

Receives: the work of a try, and its job.        Hands on: the event that says how the job ended, or a deferral.
Invariants: the same loop watches in both places. A worker that is told to stop by its machine leaves the job running; a person who ends the
task ends the job. Airflow's own timeouts come after the deadline of the watch, for they would leave the job running.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_rollout.exceptions import RolloutCancelled, RolloutJobLost
from airflow_provider_rollout.hooks.report import ProgressReport
from airflow_provider_rollout.hooks.watch import Job
from airflow_provider_rollout.operators.finish import is_to_be_resumed
from airflow_provider_rollout.operators.stop import is_ended_by_person
from airflow_provider_rollout.operators.work import Work

__all__ = ["SOON_S", "WatchingOperator"]

SOON_S = 15.0  # a rank that is done already ends within seconds: not worth a deferral
_DEFER_MARGIN_S = 120.0  # the trigger cancels at the deadline itself, which takes up to 45 s


class WatchingOperator(BaseOperator):
    """An operator that waits for a rollout job.

    Args:
        deferrable: let the triggerer watch, which frees the worker slot.
        poll_interval: seconds between two looks at the job.
        timeout: seconds, or a timedelta, until the job is cancelled.
        cancel_on_kill: whether ending the task by hand ends the job.
    """

    vllm_conn_id: str | None
    aws_conn_id: str | None
    _is_stopped = False

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = conf.getfloat("rollout", "poll_interval", fallback=10.0),
        timeout: float | timedelta | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.cancel_on_kill = cancel_on_kill

    def on_kill(self) -> None:
        """Leave the watch. Runs inside a signal handler: who ended the task is asked afterwards, when talking to Airflow is safe."""
        self._is_stopped = True

    def _defer(self, job: Job) -> NoReturn:
        # Airflow's own part of a trigger takes longer to import than all of ours; not where a DAG is parsed.
        from airflow_provider_rollout.triggers.inference import InferenceTrigger  # noqa: PLC0415

        trigger = InferenceTrigger(
            job=msgspec.to_builtins(job),
            vllm_conn_id=self.vllm_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_interval=self.poll_interval,
            deadline=self._deadline(),
            cancel_on_kill=self.cancel_on_kill,
        )
        timeout = None
        if self.timeout_s is not None:
            timeout = timedelta(seconds=self.timeout_s + self.poll_interval + _DEFER_MARGIN_S)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def _watch(self, work: Work, job: Job, *, for_s: float | None) -> dict[str, Any]:
        """Watch in the worker; when ``for_s`` is over, defer."""
        until_s = None if for_s is None else time.monotonic() + for_s
        watcher = work.watcher(job)
        try:
            event = asyncio.run(
                watcher.watch(
                    poll_interval_s=self.poll_interval,
                    deadline=self._deadline(),
                    say=ProgressReport(self.log, job.tags),
                    stopped=lambda: self._is_stopped or (until_s is not None and time.monotonic() > until_s),
                )
            )
        except AirflowTaskTimeout:
            asyncio.run(watcher.cancel())
            raise
        if is_to_be_resumed(event):
            self.log.info("The job of an earlier try is %s; starting one that resumes its work", event["status"])
            return self._watch(work, work.submit_again(), for_s=for_s)
        if event["status"] == "stopped":
            self._leave(work, job) if self._is_stopped else self._defer(job)
        return event

    def _leave(self, work: Work, job: Job) -> NoReturn:
        """The task was told to end: by a person, which ends the job too, or by its machine, which does not."""
        if self.cancel_on_kill and is_ended_by_person(work.context):
            self.log.info("The task was ended by hand; cancelling job %s", job.job_id)
            asyncio.run(work.watcher(job).cancel(kill_after_s=None))  # Airflow kills this process in 5 s
            raise RolloutCancelled(
                f"job {job.job_id} was cancelled, for its task was ended by hand; clear the task to resume"
            )
        raise RolloutJobLost(
            f"the worker was told to stop; job {job.job_id} goes on, and the next try of the task watches it again"
        )

    def _deadline(self) -> float | None:
        return None if self.timeout_s is None else time.time() + self.timeout_s
