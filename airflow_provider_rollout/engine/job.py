"""One rollout job: a spec in, an exit code out; signals in between.

Receives: a JobSpec.        Hands on: the rank's manifest, or the RolloutError whose ``exit_code`` the process ends with.
Invariants: SIGTERM and SIGINT stop pulling documents, give those in flight a grace, and leave the state resumable; a second signal takes
the grace away. What is wrong with a spec is written to the rank's attempts too, so that a watcher learns it from there.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from airflow_provider_rollout.engine.config import JobSpec
from airflow_provider_rollout.engine.exceptions import (
    EXIT_INTERRUPTED,
    EXIT_INTERRUPTED_BY_USER,
    InputError,
    JobInterruptedError,
    RolloutError,
    primary_cause,
)
from airflow_provider_rollout.engine.progress import ENDED, AttemptRecord
from airflow_provider_rollout.engine.reference import check_rollout, load_reference
from airflow_provider_rollout.engine.result import Rollout
from airflow_provider_rollout.engine.rollout import prompt_rollout
from airflow_provider_rollout.engine.runner import InferenceRunner
from airflow_provider_rollout.engine.shared_context import open_shared_context
from airflow_provider_rollout.engine.storage.attempt import Attempt, latest_attempt, process_is_gone
from airflow_provider_rollout.engine.storage.manifest import RankManifest
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import make_writer

__all__ = ["run_job"]

_log = logging.getLogger(__name__)

_GRACE_S = 10.0  # for documents in flight; with flushing and stopping the server the job ends within 30 s of a SIGTERM


async def run_job(spec: JobSpec, *, on_progress: Callable[[AttemptRecord], None] | None = None) -> RankManifest:
    """Run one rank's job to its end.

    Args:
        spec: what to do.
        on_progress: called about once a second with the present status.

    Raises:
        RolloutError: the job did not finish; ``exit_code`` is what its process should end with.
    """
    try:
        runner = _make_runner(spec, on_progress)
    except InputError as error:
        await _record_refusal(spec, error)
        raise
    async with _signals(runner):
        try:
            return await runner.run_async(spec.source, spec.rank, spec.world_size)
        except BaseExceptionGroup as group:
            raise primary_cause(group) from group


def _make_runner(spec: JobSpec, on_progress: Callable[[AttemptRecord], None] | None) -> InferenceRunner:
    rollout, identity = _rollout_of(spec)
    return InferenceRunner(
        rollout,
        spec.config,
        make_writer(spec.output_format, spec.output, metadata_key=spec.metadata_key),
        shared_context=_shared_context(spec),
        checkpoints_dir=spec.checkpoints_uri,
        records_per_chunk=spec.records_per_chunk,
        failure_budget=spec.failure_budget,
        reader=spec.reader,
        on_config_change=spec.on_config_change,
        retry_failed=spec.retry_failed,
        rerun_token=spec.rerun_token,
        job_id=spec.job_id,
        attempt_lost_after_sec=spec.attempt_lost_after_sec,
        identity=identity,
        on_progress=on_progress,
    )


def _rollout_of(spec: JobSpec) -> tuple[Rollout, dict[str, Any]]:
    arguments = {"rollout_kwargs": spec.rollout_kwargs, "shared_context": spec.shared_context}
    if spec.prompt_template is not None:
        rollout = prompt_rollout(spec.prompt_template, system_prompt=spec.system_prompt, use_chat=spec.config.use_chat)
        # The template is all there is to a prompt rollout; how it is filled in belongs to the release and not to the work.
        prompt = {"prompt_template": spec.prompt_template, "system_prompt": spec.system_prompt}
        return rollout, {"rollout": None, **prompt, **arguments}
    reference = str(spec.rollout)
    return check_rollout(load_reference(reference), reference), arguments


def _shared_context(spec: JobSpec) -> Any:
    """The named context, if there is one, beside the spec's own arguments."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[dict[str, Any]]:
        given = load_reference(spec.shared_context) if spec.shared_context else None
        async with open_shared_context(given) as value:
            yield {**value, **spec.rollout_kwargs}

    return opened


@asynccontextmanager
async def _signals(runner: InferenceRunner) -> AsyncIterator[None]:
    """Turn signals into a stop for as long as the block runs."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        _log.warning("%s: stopping; documents in flight have %.0f s", number.name, _GRACE_S)
        error = JobInterruptedError(f"the job was stopped by {number.name}; its state is kept, start it again to go on")
        error.exit_code = EXIT_INTERRUPTED_BY_USER if number is signal.SIGINT else EXIT_INTERRUPTED
        runner.stop(error, grace_s=_GRACE_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _record_refusal(spec: JobSpec, error: RolloutError) -> None:
    """Leave a failed attempt behind, unless another attempt is or may be at work."""
    store = ObjectStore.open(spec.checkpoints_uri)
    newest = await latest_attempt(store, spec.rank)
    if newest is not None and newest[0].state not in ENDED and not process_is_gone(newest[0].process):
        return
    attempt = await Attempt.claim(store, rank=spec.rank, job_id=spec.job_id)
    await attempt.beat(
        msgspec.structs.replace(
            attempt.record,
            state="failed",
            error=str(error),
            error_class=type(error).__name__,
            exit_code=error.exit_code,
        )
    )
