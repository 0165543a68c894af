"""One rank, from its input to its commit records: workers pull documents, a committer writes the chunks that are complete.

Receives: the rank's open rooms, made by the runner.        Hands on: commit records; the runner makes the manifest of them.
Invariants: work flows on across chunks, no drain in between: a chunk is written while later ones are worked on. A chunk's documents are
durable in the cache before its output is written, so that whoever writes the chunk, now or after a crash, writes the same bytes. The
servers are opened only when a document needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_provider_rollout.engine.chunk_tracker import ChunkTracker, OpenChunk
from airflow_provider_rollout.engine.document import NumberedDocument, Position
from airflow_provider_rollout.engine.document_feed import DocumentFeed
from airflow_provider_rollout.engine.failure_policy import FailureKeeper
from airflow_provider_rollout.engine.finish_chunk import cause_of, finish_chunk
from airflow_provider_rollout.engine.generate import GenerateRoom
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.result import Rollout
from airflow_provider_rollout.engine.rollout import FinishedDocument, run_document
from airflow_provider_rollout.engine.stop import Stop
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import Checkpoint
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import OutputWriter
from airflow_provider_rollout.engine.storage.request_cache import RequestCache

__all__ = ["OpenServing", "RankRun"]

OpenServing = Callable[[], AbstractAsyncContextManager[tuple[GenerateRoom, Mapping[str, Any]]]]
"""Opens the servers and the shared context."""


@dataclass(slots=True)
class RankRun:
    """All documents of one rank in one attempt."""

    rollout: Rollout
    workers: int
    open_serving: OpenServing
    attempt: Attempt
    checkpoint: Checkpoint
    cache: RequestCache
    writer: OutputWriter
    outputs: ObjectStore
    tracker: ChunkTracker
    failures: FailureKeeper
    metrics: MetricsKeeper
    stop: Stop
    shard_of: Callable[[int], str | None]
    documents_read: int = 0
    read_to: Position = field(default_factory=Position)
    documents_resumed: int = 0
    input_ended: bool = False
    _held: NumberedDocument | None = None
    _complete: asyncio.Queue[OpenChunk | None] = field(default_factory=asyncio.Queue)

    async def run(self, feed: DocumentFeed) -> None:
        """Work through the feed.

        Raises:
            JobStoppedError: the job was asked to stop; what has ended is kept.
            RolloutError: the job cannot go on.
        """
        async with self.stop.bounding(0.0), asyncio.TaskGroup() as group:
            committing = group.create_task(self._commit_chunks())
            self._held = await self._next(feed)
            if self._held is not None:
                await self._work_all(feed)
            if self.stop.error is not None and not self.input_ended:
                raise self.stop.error
            for chunk in self.tracker.input_ended():
                self._complete.put_nowait(chunk)
            self._complete.put_nowait(None)
            await committing
        self.failures.check_share()

    async def _work_all(self, feed: DocumentFeed) -> None:
        async with self.open_serving() as (room, shared_context), asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work(feed, room, shared_context))

    async def _work(self, feed: DocumentFeed, room: GenerateRoom, shared_context: Mapping[str, Any]) -> None:
        while not self.stop.asked.is_set() and (document := await self._next(feed)) is not None:
            with self.metrics.queues.track("documents"):
                finished = await run_document(document, self.rollout, room, shared_context)
            self._keep(document, finished)

    async def _next(self, feed: DocumentFeed) -> NumberedDocument | None:
        """The next document that no earlier attempt has finished."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        while (document := await feed.get()) is not None:
            self.documents_read, self.read_to = document.number + 1, document.end
            self.tracker.read(document)
            if self.cache.restored_documents.get((document.chunk_index, document.number)) != document.key:
                return document
            self.documents_resumed += 1
            self._ended(document.chunk_index)
        self.input_ended = True
        return None

    def _keep(self, document: NumberedDocument, finished: FinishedDocument) -> None:
        value, is_settled = msgspec.json.encode(finished), not finished.failures
        self.cache.put_document(document.chunk_index, document.number, document.key, value, is_settled=is_settled)
        self.metrics.count(f"documents_{finished.outcome}")
        if finished.failures:
            self.metrics.count("rollouts_failed", len(finished.failures))
        causes = [
            (cause_of(item.failure), item.failure.message) for item in finished.failures if item.failure is not None
        ]
        self.failures.add(finished.outcome, causes, key=document.key)
        self._ended(document.chunk_index)

    def _ended(self, chunk_index: int) -> None:
        complete = self.tracker.end(chunk_index)
        if complete is not None:
            self._complete.put_nowait(complete)

    async def _commit_chunks(self) -> None:
        while (chunk := await self._complete.get()) is not None:
            await self.cache.flush()
            kept = await self.cache.document_rows(chunk.chunk_index)
            finished = await asyncio.to_thread(finish_chunk, chunk, kept, self.writer, self.shard_of)
            await self.checkpoint.commit(self.attempt, self.outputs, finished, extension=self.writer.extension)
            self.metrics.count("chunks_committed")
            await self.cache.forget(chunk.chunk_index)
