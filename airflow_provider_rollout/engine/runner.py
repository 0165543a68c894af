"""The hall: opens every room of one rank's job, in order, and closes them in reverse.

Receives: a rollout function, a configuration, a writer, and data.        Hands on: the rank's manifest.
Invariants: the attempt is claimed before anything is written. Whatever ends the run, the cache is flushed and the attempt's last record
says how it ended, unless a newer attempt has taken over: then nothing more is written. The names follow datatrove's InferenceRunner.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from airflow_provider_rollout.engine.chunk_tracker import ChunkTracker
from airflow_provider_rollout.engine.config import (
    DEFAULT_RECORDS_PER_CHUNK,
    FailureBudget,
    InferenceConfig,
    ReaderConfig,
)
from airflow_provider_rollout.engine.document import Document
from airflow_provider_rollout.engine.document_feed import DocumentFeed
from airflow_provider_rollout.engine.exceptions import (
    FencedError,
    FingerprintMismatchError,
    JobStoppedError,
    StoreError,
    primary_cause,
)
from airflow_provider_rollout.engine.failure_policy import FailureKeeper
from airflow_provider_rollout.engine.fingerprint import JobRecord, config_parts, make_job_record
from airflow_provider_rollout.engine.generate import GenerateRoom
from airflow_provider_rollout.engine.heartbeat import Heartbeat
from airflow_provider_rollout.engine.input_source import InputSource, open_input
from airflow_provider_rollout.engine.progress import AttemptRecord
from airflow_provider_rollout.engine.rank_run import RankRun
from airflow_provider_rollout.engine.reference import check_rollout, rollout_identity
from airflow_provider_rollout.engine.reopen import chunks_with_failures, reopen_chunks
from airflow_provider_rollout.engine.result import Rollout
from airflow_provider_rollout.engine.rollout import FinishedDocument
from airflow_provider_rollout.engine.serving.dispatch import open_dispatcher
from airflow_provider_rollout.engine.shared_context import open_shared_context
from airflow_provider_rollout.engine.stop import Stop
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import Checkpoint, clear_rank
from airflow_provider_rollout.engine.storage.manifest import (
    RankManifest,
    finish_run,
    make_rank_manifest,
    read_rank_manifest,
    write_rank_manifest,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.output import OutputWriter
from airflow_provider_rollout.engine.storage.pinned import OnChange, pin_job
from airflow_provider_rollout.engine.storage.request_cache import RequestCache

__all__ = ["InferenceRunner"]

_log = logging.getLogger(__name__)

# After the grace, for stopping servers and flushing: a store that hangs must not hold the job beyond 30 s.
_LEAVE_S = 8.0
_READ_AHEAD = 4  # documents read ahead per document in flight, so that no worker waits for the reader


class InferenceRunner:
    """Runs a rollout function over all documents of a rank."""

    def __init__(
        self,
        rollout_fn: Rollout,
        config: InferenceConfig,
        output_writer: OutputWriter,
        *,
        shared_context: Any = None,
        checkpoints_dir: str | None = None,
        records_per_chunk: int = DEFAULT_RECORDS_PER_CHUNK,
        metadata_key: str | None = None,
        skip_bad_requests: bool | None = None,
        failure_budget: FailureBudget | None = None,
        reader: ReaderConfig | None = None,
        on_config_change: OnChange = "refuse",
        retry_failed: bool = False,
        rerun_token: str | None = None,
        job_id: str | None = None,
        attempt_lost_after_sec: float = 60.0,
        identity: Mapping[str, Any] | None = None,
        store_options: StoreOptions | None = None,
        on_progress: Callable[[AttemptRecord], None] | None = None,
    ) -> None:
        """Prepare; nothing is opened before `run`.

        Args:
            rollout_fn: ``async def rollout(document, generate, **shared_context)``.
            config: the model and its server.
            output_writer: format and place of the output.
            shared_context: a dict, a context manager (async or not), or a callable that gives one; its entries become keyword arguments.
            checkpoints_dir: folder or URI of the state; by default ``_rollout`` below the output.
            records_per_chunk: documents per output object and commit.
            metadata_key: the column of the results; by default the writer's.
            skip_bad_requests: False ends the job at the first failed document, as datatrove does; None leaves it to the budget.
            failure_budget: how many documents may fail.
            reader: how rows become documents, when ``data`` names shards.
            on_config_change: what a resume under another configuration does.
            retry_failed: ask again for documents that failed in an earlier attempt.
            rerun_token: a token the state does not know makes the rank begin anew.
            job_id: names this launch in the attempt and for the cancel marker; by default made up for each run, for it tells claims apart.
            attempt_lost_after_sec: seconds of silence after which another machine's attempt is taken over.
            identity: what the fingerprint knows of the rollout; by default the function's name, source and version.
            store_options: how to reach S3; by default what the environment says.
            on_progress: called about once a second with the present record.
        """
        self._rollout = check_rollout(rollout_fn, getattr(rollout_fn, "__qualname__", repr(rollout_fn)))
        self._config = config
        self._writer = output_writer.with_metadata_key(metadata_key) if metadata_key else output_writer
        self._shared_context = shared_context
        self._records_per_chunk = records_per_chunk
        budget = failure_budget or FailureBudget()
        self._budget = FailureBudget(max_failed=0) if skip_bad_requests is False else budget
        self._reader = reader or ReaderConfig()
        self._on_change = on_config_change
        self._retry_failed = retry_failed
        self._rerun_token = rerun_token
        self._job_id = job_id
        self._lost_after_s = attempt_lost_after_sec
        self._identity = {"rollout": rollout_identity(self._rollout), **(identity or {})}
        self._options = store_options
        self._on_progress = on_progress
        self._checkpoints = checkpoints_dir or f"{output_writer.uri.rstrip('/')}/_rollout"
        self._stop = Stop()

    def run(self, data: Sequence[str] | Iterable[Document], rank: int = 0, world_size: int = 1) -> RankManifest:
        """Run to the end, outside of any event loop; see `run_async`."""
        return asyncio.run(self.run_async(data, rank, world_size))

    def stop(self, error: JobStoppedError, *, grace_s: float) -> None:
        """Ask a running job to stop: no further document is begun, those in flight have ``grace_s`` seconds."""
        self._stop.ask(error, grace_s)

    async def run_async(
        self, data: Sequence[str] | Iterable[Document], rank: int = 0, world_size: int = 1
    ) -> RankManifest:
        """Run one rank to the end, or resume it.

        Args:
            data: URIs or globs of shards, of which this rank takes its part; or this rank's Documents, in the same order each time.
            rank: which part, 0-based.
            world_size: how many parts.

        Returns:
            The rank's manifest.

        Raises:
            RolloutError: the job cannot go on; its ``exit_code`` says how a process should end.
        """
        try:
            async with self._stop.bounding(_LEAVE_S):
                return await self._run_attempt(data, rank, world_size)
        except BaseExceptionGroup as group:
            raise primary_cause(group) from group

    async def _run_attempt(self, data: Any, rank: int, world_size: int) -> RankManifest:
        store = ObjectStore.open(self._checkpoints, self._options)
        outputs = ObjectStore.open(self._writer.uri, self._options)
        job_id = self._job_id or f"local-{uuid.uuid4().hex[:12]}"
        async with self._stop.bounding(None):  # there is nothing to store yet, and the wait may be long
            attempt = await Attempt.claim(store, rank=rank, job_id=job_id, lost_after_s=self._lost_after_s)
        heartbeat = Heartbeat(
            attempt,
            store,
            FailureKeeper(self._budget),
            self._stop,
            log_interval_s=self._config.metric_interval,
            on_progress=self._on_progress,
        )
        try:
            async with heartbeat.beating():
                manifest = await self._run_claimed(data, world_size, store, outputs, heartbeat)
                await finish_run(store, outputs, manifest)
            await heartbeat.end("succeeded", manifest=manifest)
        except BaseException as error:
            await heartbeat.end_with(primary_cause(error))
            raise
        return manifest

    async def _run_claimed(
        self, data: Any, world_size: int, store: ObjectStore, outputs: ObjectStore, heartbeat: Heartbeat
    ) -> RankManifest:
        """Find out what is to be done, and do it unless it is done."""
        rank = heartbeat.attempt.record.rank
        source = await open_input(
            data, store, rank=rank, world_size=world_size, reader=self._reader, records_per_chunk=self._records_per_chunk,
            on_change=self._on_change, options=self._options,
        )  # fmt: skip
        job = await pin_job(store, make_job_record(self._parts(source, store, outputs)), self._on_change)
        await self._settle_state(store, outputs, heartbeat.attempt, job)
        done = await read_rank_manifest(store, rank)
        checkpoint = await Checkpoint.load(store, rank, job.fingerprint)
        again = chunks_with_failures(checkpoint) if self._retry_failed else []
        if done is not None and not again:
            heartbeat.resume(checkpoint)
            _log.info(
                "rank %d is done since %s: %d documents; nothing to do", rank, done.finished_at, done.documents_in
            )
            return done
        async with RequestCache.open(store, heartbeat.attempt, fingerprint=job.fingerprint) as cache:
            await reopen_chunks(
                again,
                store=store,
                outputs=outputs,
                checkpoint=checkpoint,
                cache=cache,
                attempt=heartbeat.attempt,
                writer=self._writer,
            )
            heartbeat.resume(checkpoint)
            run = await self._work(source, outputs, heartbeat, checkpoint, cache)
        await checkpoint.check_outputs(outputs)
        totals = heartbeat.metrics.totals
        manifest = make_rank_manifest(
            checkpoint.done.values(),
            documents_in=max(run.documents_read, checkpoint.end_number),
            trailing_bad_rows=source.trailing_bad_rows(),
            attempt=heartbeat.attempt,
            world_size=world_size,
            output=outputs.uri,
            requests_sent=totals["requests_sent"],
            cache_hits=totals["cache_hits"],
        )
        await write_rank_manifest(store, heartbeat.attempt, manifest)
        return manifest

    async def _work(
        self,
        source: InputSource,
        outputs: ObjectStore,
        heartbeat: Heartbeat,
        checkpoint: Checkpoint,
        cache: RequestCache,
    ) -> RankRun:
        await cache.restore(checkpoint.done.keys(), self._keep_document)
        run = RankRun(
            rollout=self._rollout,
            workers=self._config.documents_in_flight,
            open_serving=lambda: self._open_serving(cache, heartbeat),
            attempt=heartbeat.attempt,
            checkpoint=checkpoint,
            cache=cache,
            writer=self._writer,
            outputs=outputs,
            tracker=ChunkTracker(self._records_per_chunk),
            failures=heartbeat.failures,
            metrics=heartbeat.metrics,
            stop=self._stop,
            shard_of=source.shard_of,
        )
        heartbeat.watch(run, source)
        feed_options = {"records_per_chunk": self._records_per_chunk, "capacity": run.workers * _READ_AHEAD}
        try:
            async with asyncio.TaskGroup() as group:
                durable = group.create_task(cache.keep_durable())
                async with DocumentFeed.open(source.open_at, checkpoint.next_gap, **feed_options) as feed:
                    await run.run(feed)
                durable.cancel()
        except BaseException as error:
            # Whatever ended the run, what has been answered is kept for the next attempt; a fenced one writes nothing more.
            if not isinstance(primary_cause(error), (FencedError, StoreError)):
                await cache.flush()
            raise
        return run

    @asynccontextmanager
    async def _open_serving(
        self, cache: RequestCache, heartbeat: Heartbeat
    ) -> AsyncIterator[tuple[GenerateRoom, Mapping[str, Any]]]:
        with tempfile.TemporaryDirectory(prefix="rollout-server-") as scratch:
            folder = Path(self._config.server_log_folder or scratch)
            async with (
                open_dispatcher(self._config, metrics=heartbeat.metrics, log_folder=folder) as dispatcher,
                open_shared_context(self._shared_context) as shared_context,
                heartbeat.serving(dispatcher),
            ):
                yield (
                    GenerateRoom(self._config, cache, dispatcher, heartbeat.metrics, self._retry_failed),
                    shared_context,
                )

    def _parts(self, source: InputSource, store: ObjectStore, outputs: ObjectStore) -> dict[str, Any]:
        return {
            "input": source.identity,
            # A state that lies elsewhere belongs to one output; one that lies in its output may move along with it.
            "output": "" if store.uri == f"{outputs.uri}/_rollout" else outputs.uri,
            **config_parts(self._config),
            **self._identity,
            "records_per_chunk": self._records_per_chunk,
            "output_format": self._writer.extension,
            "metadata_key": self._writer.metadata_key,
        }

    async def _settle_state(self, store: ObjectStore, outputs: ObjectStore, attempt: Attempt, job: JobRecord) -> None:
        """Clear what a run of another configuration, or before a forced rerun, has left of this rank."""
        before = attempt.record
        is_foreign = before.fingerprint not in {"", job.fingerprint}
        if is_foreign and self._on_change == "refuse":
            raise FingerprintMismatchError(
                f"rank {before.rank} of {store.uri} was written under another configuration than its other ranks are now; use "
                'on_config_change="restart" to begin it anew'
            )
        is_rerun = self._rerun_token not in {None, before.rerun_token}
        if is_foreign or (is_rerun and before.fingerprint):
            _log.info("clearing rank %d of %s to begin anew", before.rank, store.uri)
            await clear_rank(store, outputs, attempt)
        await attempt.settle(
            msgspec.structs.replace(
                before, fingerprint=job.fingerprint, rerun_token=self._rerun_token or before.rerun_token
            )
        )

    def _keep_document(self, value: bytes) -> bool:
        return not self._retry_failed or not msgspec.json.decode(value, type=FinishedDocument).failures
