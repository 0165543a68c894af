"""Runs a model over a dataset as one task, or as one mapped task per rank.

Receives: where the documents are, what to ask, which model.        Hands on: a job spec to the hook, and a small result to XCom.
Invariants: the rollout runs in a job of its own, never in the worker or the triggerer; ``deferrable`` only chooses who watches. A retry or
a clear finds the job of the try before and goes on with it. A worker that is told to stop by its machine leaves the job running; a
person who ends the task ends the job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Literal, NoReturn

import msgspec
from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.mappedoperator import OperatorPartial
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_rollout.engine.config import (
    DEFAULT_RECORDS_PER_CHUNK,
    FailureBudget,
    InferenceConfig,
    JobSpec,
)
from airflow_provider_rollout.engine.exceptions import InputError, RolloutError
from airflow_provider_rollout.engine.progress import Progress
from airflow_provider_rollout.exceptions import RolloutCancelled, RolloutConfigError, RolloutFailed, RolloutJobLost
from airflow_provider_rollout.hooks.store import open_store, store_options
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.hooks.watch import Job, job_of, progress_line
from airflow_provider_rollout.links.inference import RolloutProgressLink
from airflow_provider_rollout.operators.finish import announce, check_event, read_result, summary
from airflow_provider_rollout.operators.memory import mark_finished
from airflow_provider_rollout.operators.parameters import (
    SealedConfig,
    absolute,
    check_parameters,
    check_partial,
    late_places,
    split_key,
    with_numbers,
)
from airflow_provider_rollout.operators.reference import reference_of
from airflow_provider_rollout.operators.stop import is_ended_by_person
from airflow_provider_rollout.operators.work import Work
from airflow_provider_rollout.triggers.inference import InferenceTrigger

__all__ = ["InferenceOperator"]

_SOON_S = 15.0  # a rank that is done already ends within seconds: not worth a deferral
_DEFER_MARGIN_S = 120.0  # the trigger cancels at the deadline itself; Airflow's own timeout would leave the job running


class InferenceOperator(BaseOperator):
    """Runs an async rollout function, or a prompt, over every document of a dataset.

    Give either ``rollout`` or ``prompt_template``. Map it over ranks with ``InferenceOperator.partial(…, world_size=N).expand(rank=[…])``.
    Use ``retries`` of at least 1: a retry goes on where the job stopped.

    Args:
        source: URI, glob or folder of JSONL, Parquet or CSV shards, or a list of them. Templated.
        output: folder or URI that receives the results. Templated.
        config: the model and its server. The values of a dict are templated. An API key is better kept in the connection.
        rollout: the async function ``(document, generate, **kwargs)``, or a reference to it, ``package.module:function``.
        prompt_template: a prompt with ``{text}``, ``{id}`` and metadata fields. Templated by Airflow first.
        system_prompt: goes with ``prompt_template``. Templated.
        rollout_kwargs: keyword arguments of the rollout function, as JSON. Templated.
        shared_context: reference to a dict, callable or context manager whose value the rollout function receives too.
        vllm_conn_id: the connection that says where the GPU is. Templated.
        aws_conn_id: how S3 is reached; looked at only when a URI is on S3. None for the machine's own role. Templated.
        rank: which part of the input this task does, from 0.
        world_size: how many parts there are.
        records_per_chunk: documents per output file and checkpoint.
        checkpoints: folder or URI of the state; by default below the output. Templated.
        text_field: the column that holds a document's text.
        id_field: the column that holds its id.
        on_bad_row: "fail", or "skip" and count.
        output_format: "parquet", "jsonl" or "jsonl.zst".
        metadata_key: the column of the output that holds the results.
        failure_budget: how many documents may fail.
        retry_failed: ask again for documents that failed in an earlier try.
        on_config_change: "refuse" to resume work that was begun with other parameters, or "restart" it.
        deferrable: let the triggerer watch, which frees the worker slot.
        poll_interval: seconds between two looks at the job.
        timeout: seconds, or a timedelta, until the job is cancelled.
        cancel_on_kill: whether ending the task by hand ends the job.
        durable: remember the job between tries in the task state store.
        force_rerun: do a finished rank again when the task runs again.
    """

    template_fields: Sequence[str] = (
        "source",
        "output_uri",
        "config",
        "prompt_template",
        "system_prompt",
        "rollout_kwargs",
        "checkpoints",
        "vllm_conn_id",
        "aws_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json", "rollout_kwargs": "json"}
    operator_extra_links = (RolloutProgressLink(),)
    ui_color = "#e6f4ea"
    _is_stopped = False

    def __init__(
        self,
        *,
        source: str | list[str],
        output: str,
        config: InferenceConfig | Mapping[str, Any] | SealedConfig,
        rollout: Callable[..., Any] | str | None = None,
        prompt_template: str | None = None,
        system_prompt: str | None = None,
        rollout_kwargs: Mapping[str, Any] | None = None,
        shared_context: str | None = None,
        vllm_conn_id: str | None = VllmHook.default_conn_name,
        aws_conn_id: str | None = "aws_default",
        rank: int = 0,
        world_size: int = 1,
        records_per_chunk: int = DEFAULT_RECORDS_PER_CHUNK,
        checkpoints: str | None = None,
        text_field: str = "text",
        id_field: str = "id",
        on_bad_row: Literal["fail", "skip"] = "fail",
        output_format: Literal["parquet", "jsonl", "jsonl.zst"] = "parquet",
        metadata_key: str = "rollout_results",
        failure_budget: FailureBudget | Mapping[str, Any] | None = None,
        retry_failed: bool = False,
        on_config_change: Literal["refuse", "restart"] = "refuse",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        timeout: float | timedelta | None = None,
        cancel_on_kill: bool = True,
        durable: bool = True,
        force_rerun: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source, self.output_uri, self.checkpoints = (
            source,
            output,
            checkpoints,
        )  # `output` is Airflow's name for the task's XCom
        self.config, self._api_key = split_key(config)
        self.prompt_template, self.system_prompt, self.rollout_kwargs = (
            prompt_template,
            system_prompt,
            rollout_kwargs or {},
        )
        self.rollout = reference_of(rollout) if callable(rollout) else rollout
        self.shared_context, self.vllm_conn_id, self.aws_conn_id = shared_context, vllm_conn_id, aws_conn_id
        self.rank, self.world_size, self.records_per_chunk = rank, world_size, records_per_chunk
        self.reader = {"text_field": text_field, "id_field": id_field, "on_bad_row": on_bad_row}
        self.output_format, self.metadata_key, self.failure_budget = output_format, metadata_key, failure_budget or {}
        self.retry_failed, self.on_config_change, self.force_rerun = retry_failed, on_config_change, force_rerun
        self.deferrable, self.cancel_on_kill, self.durable = deferrable, cancel_on_kill, durable
        self.poll_interval, self.timeout_s = poll_interval, _seconds(timeout)
        self._late_places = late_places(self.config)
        check_parameters(self._job_fields())

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Everything but what is mapped over; checked when the DAG is parsed, like the operator itself.

        Raises:
            ConfigError: a parameter is wrong.
        """
        check_partial(kwargs)
        if "config" in kwargs:
            config, key = split_key(kwargs["config"])
            if key is not None:
                kwargs["config"] = SealedConfig({**config, "api_key": key})
        return super().partial(**kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Go on with the job of an earlier try, or start one; then wait for its end, here or in the triggerer.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        with _translated():
            work = self._work(context)
            is_done_already = self.deferrable and asyncio.run(_has_manifest(work))
            job, event = work.find_or_submit()
        if self._is_stopped:
            self._leave(work, job)
        if event is None and self.deferrable and not is_done_already:
            self._defer(job)
        if event is None:
            event = self._watch(work, job, for_s=_SOON_S if self.deferrable else None)
        return self._finish(context, event)

    def execute_complete(self, context: Context, event: Any) -> dict[str, Any]:
        """Go on when the trigger has seen the job end.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        if isinstance(event, Mapping) and event.get("status") == "lost" and job_of(event).reattached:
            self.log.info("The job of an earlier try was lost; starting one that resumes its work")
            with _translated():
                job = self._work(context).submit_again()
            self._defer(job)
        return self._finish(context, event)

    def on_kill(self) -> None:
        """Leave the watch. Runs inside a signal handler: who ended the task is asked afterwards, when talking to Airflow is safe."""
        self._is_stopped = True

    def _finish(self, context: Context, event: Any) -> dict[str, Any]:
        job = job_of(check_event(event))
        result = summary(job, read_result(job, self.aws_conn_id), resumed=event["resumed"])
        if self.durable:
            mark_finished(context, job.job_id)
        announce(context, self.outlets, result)
        return result

    def _defer(self, job: Job) -> NoReturn:
        deadline = None if self.timeout_s is None else time.time() + self.timeout_s
        trigger = InferenceTrigger(
            job=msgspec.to_builtins(job),
            vllm_conn_id=self.vllm_conn_id,
            aws_conn_id=self.aws_conn_id,
            poll_interval=self.poll_interval,
            deadline=deadline,
            cancel_on_kill=self.cancel_on_kill,
        )
        padded = (
            None if self.timeout_s is None else timedelta(seconds=self.timeout_s + self.poll_interval + _DEFER_MARGIN_S)
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=padded)

    def _watch(self, work: Work, job: Job, *, for_s: float | None) -> dict[str, Any]:
        """Watch in the worker; when ``for_s`` is over, defer."""
        until_s = None if for_s is None else time.monotonic() + for_s
        deadline = None if self.timeout_s is None else time.time() + self.timeout_s
        watcher = work.watcher(job)
        try:
            event = asyncio.run(
                watcher.watch(
                    poll_interval_s=self.poll_interval,
                    deadline=deadline,
                    say=self._say,
                    stopped=lambda: self._is_stopped or (until_s is not None and time.monotonic() > until_s),
                )
            )
        except AirflowTaskTimeout:
            asyncio.run(watcher.cancel())
            raise
        if event["status"] == "lost" and job.reattached:
            self.log.info("The job of an earlier try was lost; starting one that resumes its work")
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

    def _work(self, context: Context) -> Work:
        """Everything that this try needs, with all connections looked up."""
        hook = VllmHook(self.vllm_conn_id)
        config = {**with_numbers(self.config, self._late_places)}
        if self._api_key is not None:
            config["api_key"] = self.render_template(self._api_key, context)
        complete, environment = hook.complete(config)
        sources = [self.source] if isinstance(self.source, str) else list(self.source)
        fields = {
            **self._job_fields(),
            "config": complete,
            "source": [absolute(uri) for uri in sources],
            "output": absolute(self.output_uri),
            "checkpoints": absolute(self.checkpoints) if self.checkpoints else None,
        }
        spec = JobSpec(job_id="-", **fields)
        options = store_options([*spec.source, spec.output, spec.checkpoints_uri], self.aws_conn_id)
        return Work(
            spec=spec,
            environment={**environment, **options.to_environment()},
            hook=hook,
            aws_conn_id=self.aws_conn_id,
            context=context,
            durable=self.durable,
            force_rerun=self.force_rerun,
        )

    def _job_fields(self) -> dict[str, Any]:
        return {
            "source": [self.source] if isinstance(self.source, str) else self.source,
            "output": self.output_uri,
            "config": self.config,
            **{name: getattr(self, name) for name in _SAME_NAME},
        }

    def _say(self, progress: Progress) -> None:
        self.log.info("%s", progress_line(progress))


@contextmanager
def _translated() -> Iterator[None]:
    """The engine's errors before there is a job, as Airflow's."""
    try:
        yield
    except InputError as error:
        raise RolloutConfigError(str(error)) from error
    except RolloutError as error:
        raise RolloutFailed(str(error)) from error


async def _has_manifest(work: Work) -> bool:
    from airflow_provider_rollout.engine.storage.manifest import read_rank_manifest  # noqa: PLC0415 - not where a DAG is parsed

    store = open_store(work.spec.checkpoints_uri, work.aws_conn_id)
    return await read_rank_manifest(store, work.spec.rank) is not None


def _seconds(timeout: float | timedelta | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


_SAME_NAME = (
    "checkpoints", "rollout", "prompt_template", "system_prompt", "rollout_kwargs", "shared_context", "rank", "world_size",
    "records_per_chunk", "output_format", "metadata_key", "reader", "failure_budget", "retry_failed", "on_config_change",
)  # fmt: skip
