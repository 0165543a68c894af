"""One run of a rollout task: from the start of its worker, or from the event of its trigger, to its result.

Receives: the operator with its parameters rendered, and the task's context.        Hands on: the task's result; or a deferral.
Invariants: the same loop watches in the worker and in the triggerer. A worker that is told to stop by its machine leaves the job running; a
person who ends the task ends the job. Airflow's own timeouts come after the deadline of the watch, for they would leave the job running.
Whatever a task needs to run is imported here, and this room is imported when a task runs: a DAG file that is parsed pays for none of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any, NoReturn, Protocol

import msgspec
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_rollout.engine.config import JobSpec
from airflow_provider_rollout.engine.exceptions import InputError, RolloutError
from airflow_provider_rollout.engine.storage.manifest import read_rank_manifest
from airflow_provider_rollout.exceptions import RolloutCancelled, RolloutConfigError, RolloutFailed, RolloutJobLost
from airflow_provider_rollout.hooks.report import ProgressReport
from airflow_provider_rollout.hooks.store import open_store, store_options
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.hooks.watch import Job, job_of
from airflow_provider_rollout.operators.finish import announce, check_event, is_to_be_resumed, read_result, summary
from airflow_provider_rollout.operators.memory import mark_finished
from airflow_provider_rollout.operators.stop import is_ended_by_person
from airflow_provider_rollout.operators.work import Work
from airflow_provider_rollout.triggers.inference import InferenceTrigger

__all__ = ["Execution", "RolloutTask"]

_SOON_S = 15.0  # a rank that is done already ends within seconds: not worth a deferral
_DEFER_MARGIN_S = 120.0  # the trigger cancels at the deadline itself, which takes up to 45 s


class RolloutTask(Protocol):
    """What the operator is to its execution; the operator's own docstring tells of each."""

    vllm_conn_id: str | None
    aws_conn_id: str | None
    deferrable: bool
    poll_interval: float
    timeout_s: float | None
    cancel_on_kill: bool
    durable: bool
    force_rerun: bool
    is_stopped: bool
    outlets: Any

    @property
    def log(self) -> Any:
        """The task's log."""

    def defer(self, *, trigger: Any, method_name: str, timeout: Any = None) -> NoReturn:
        """Hand over to the triggerer."""

    def job_fields(self, context: Context) -> dict[str, Any]:
        """The fields of the job spec as rendered, with the API key in the config."""


class Execution:
    """Runs one task.

    Args:
        task: the operator.
        context: the task's.
    """

    def __init__(self, task: RolloutTask, context: Context) -> None:
        self._task = task
        self._context = context

    @cached_property
    def work(self) -> Work:
        """Everything that this try needs, with all connections looked up.

        Raises:
            ConfigError: a parameter is wrong.
        """
        hook = VllmHook(self._task.vllm_conn_id)
        fields = self._task.job_fields(self._context)
        config, environment = hook.complete(fields.pop("config"))
        spec = JobSpec(job_id="-", config=config, **fields)
        options = store_options([*spec.source, spec.output, spec.checkpoints_uri], self._task.aws_conn_id)
        return Work(
            spec=spec,
            environment={**environment, **options.to_environment()},
            hook=hook,
            aws_conn_id=self._task.aws_conn_id,
            context=self._context,
            durable=self._task.durable,
            force_rerun=self._task.force_rerun,
        )

    def start(self) -> dict[str, Any]:
        """Go on with the job of an earlier try, or start one; then wait for its end, here or in the triggerer.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        task = self._task
        with _translated():
            is_done_already = task.deferrable and self._has_manifest()
            job, event = self.work.find_or_submit()
        if task.is_stopped:
            self._leave(job)
        if event is None and task.deferrable and not is_done_already:
            self._defer(job)
        if event is None:
            event = self._watch(job, for_s=_SOON_S if task.deferrable else None)
        return self._finish(event)

    def go_on(self, event: Any) -> dict[str, Any]:
        """Go on when the trigger has seen the job end.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        if is_to_be_resumed(event):
            self._defer(self._submit_again(event))
        return self._finish(event)

    def _submit_again(self, event: Any) -> Job:
        self._task.log.info("The job of an earlier try is %s; starting one that resumes its work", event["status"])
        with _translated():
            return self.work.submit_again()

    def _has_manifest(self) -> bool:
        store = open_store(self.work.spec.checkpoints_uri, self._task.aws_conn_id)
        return asyncio.run(read_rank_manifest(store, self.work.spec.rank)) is not None

    def _defer(self, job: Job) -> NoReturn:
        task = self._task
        trigger = InferenceTrigger(
            job=msgspec.to_builtins(job),
            vllm_conn_id=task.vllm_conn_id,
            aws_conn_id=task.aws_conn_id,
            poll_interval=task.poll_interval,
            deadline=self._deadline(),
            cancel_on_kill=task.cancel_on_kill,
        )
        timeout = None
        if task.timeout_s is not None:
            timeout = timedelta(seconds=task.timeout_s + task.poll_interval + _DEFER_MARGIN_S)
        task.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def _watch(self, job: Job, *, for_s: float | None) -> dict[str, Any]:
        """Watch in the worker; when ``for_s`` is over, defer."""
        task, watcher = self._task, self.work.watcher(job)
        until_s = None if for_s is None else time.monotonic() + for_s
        try:
            event = asyncio.run(
                watcher.watch(
                    poll_interval_s=task.poll_interval,
                    deadline=self._deadline(),
                    say=ProgressReport(task.log, job.tags),
                    stopped=lambda: task.is_stopped or (until_s is not None and time.monotonic() > until_s),
                )
            )
        except AirflowTaskTimeout:
            asyncio.run(watcher.cancel())
            raise
        if is_to_be_resumed(event):
            return self._watch(self._submit_again(event), for_s=for_s)
        if event["status"] == "stopped":
            self._leave(job) if task.is_stopped else self._defer(job)
        return event

    def _leave(self, job: Job) -> NoReturn:
        """The task was told to end: by a person, which ends the job too, or by its machine, which does not."""
        if self._task.cancel_on_kill and is_ended_by_person(self._context):
            self._task.log.info("The task was ended by hand; cancelling job %s", job.job_id)
            asyncio.run(self.work.watcher(job).cancel(kill_after_s=None))  # Airflow kills this process in 5 s
            raise RolloutCancelled(
                f"job {job.job_id} was cancelled, for its task was ended by hand; clear the task to resume"
            )
        raise RolloutJobLost(
            f"the worker was told to stop; job {job.job_id} goes on, and the next try of the task watches it again"
        )

    def _deadline(self) -> float | None:
        return None if self._task.timeout_s is None else time.time() + self._task.timeout_s

    def _finish(self, event: Any) -> dict[str, Any]:
        job = job_of(check_event(event))
        result = summary(job, read_result(job, self._task.aws_conn_id), resumed=event["resumed"])
        if self._task.durable:
            mark_finished(self._context, job.job_id)
        announce(self._context, self._task.outlets, result)
        return result


@contextmanager
def _translated() -> Iterator[None]:
    """The engine's errors before there is a job, as Airflow's."""
    try:
        yield
    except InputError as error:
        raise RolloutConfigError(str(error)) from error
    except RolloutError as error:
        raise RolloutFailed(str(error)) from error
