"""One complete chunk, from its finished documents to the bytes that are written. Pure.

Receives: FinishedDocuments as they were kept, in input order.        Hands on: FinishedChunk: output, dead letters, counts.
Invariant: every document of the chunk is in it exactly once; if not, nothing is handed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.chunk_tracker import OpenChunk
from airflow_provider_rollout.engine.exceptions import ManifestError
from airflow_provider_rollout.engine.result import Failure
from airflow_provider_rollout.engine.rollout import FinishedDocument
from airflow_provider_rollout.engine.storage.checkpoint import ChunkCounts, FinishedChunk
from airflow_provider_rollout.engine.storage.output import OutputRow, OutputWriter

__all__ = ["cause_of", "finish_chunk"]


def finish_chunk(
    chunk: OpenChunk, kept: Sequence[bytes], writer: OutputWriter, shard_of: Callable[[int], str | None]
) -> FinishedChunk:
    """Encode a chunk. CPU only; for a thread.

    Args:
        chunk: which documents belong to it.
        kept: its FinishedDocuments as they were kept.
        writer: makes the output.
        shard_of: the shard that a part of the input belongs to, for the dead letters.

    Raises:
        ManifestError: a document is missing or there twice.
    """
    documents = [msgspec.json.decode(value, type=FinishedDocument) for value in kept]
    expected = list(range(chunk.first_number, chunk.first_number + chunk.read))
    if [document.number for document in documents] != expected:
        raise ManifestError(
            f"chunk {chunk.chunk_index} should hold documents {expected[0]} to {expected[-1]} and the cache has {len(documents)}; "
            "the chunk is not written"
        )
    written = [document for document in documents if document.outcome == "written"]
    failed = [document for document in documents if document.failures]
    return FinishedChunk(
        chunk_index=chunk.chunk_index,
        first_number=chunk.first_number,
        end=chunk.end,
        counts=_count(chunk, documents),
        output=writer.encode(_row(document) for document in written) if written else None,
        dead_letters=b"".join(_dead_letters(document, shard_of) for document in failed) if failed else None,
        failed_numbers=[document.number for document in documents if document.outcome == "failed"],
        dropped={document.number: document.key for document in documents if document.outcome == "dropped"},
        retryable_numbers=[document.number for document in written if document.failures],
    )


def cause_of(failure: Failure) -> str:
    """The name under which a failure is counted: its class, and the status if the server gave one."""
    return failure.cause if failure.status is None else f"{failure.cause} {failure.status}"


def _row(document: FinishedDocument) -> OutputRow:
    return OutputRow(
        id=document.id,
        text=document.text,
        metadata=document.metadata,
        media=document.media,
        results=list(document.values),
    )


def _dead_letters(document: FinishedDocument, shard_of: Callable[[int], str | None]) -> bytes:
    """One line for each failed rollout; it leads to the document in the input and names the payload, and holds no text of either."""
    return b"".join(
        strict_json.dumps(
            {
                "document_id": document.id,
                "document_key": document.key,
                "document_number": document.number,
                "rollout_index": rollout.rollout_index,
                "document_outcome": document.outcome,
                "shard": shard_of(document.end.part_index),
                "shard_offset": document.end.offset,
                **msgspec.structs.asdict(rollout.failure),
            }
        )
        + b"\n"
        for rollout in document.failures
        if rollout.failure is not None
    )


def _count(chunk: OpenChunk, documents: Sequence[FinishedDocument]) -> ChunkCounts:
    outcomes = Counter(document.outcome for document in documents)
    causes = Counter(
        cause_of(rollout.failure) for document in documents for rollout in document.failures if rollout.failure
    )
    return ChunkCounts(
        documents=len(documents),
        written=outcomes["written"],
        failed=outcomes["failed"],
        dropped=outcomes["dropped"],
        rollouts_written=sum(len(document.values) for document in documents),
        rollouts_failed=sum(len(document.failures) for document in documents),
        bad_rows=chunk.bad_rows,
        requests=sum(document.requests for document in documents),
        prompt_tokens=sum(document.prompt_tokens for document in documents),
        completion_tokens=sum(document.completion_tokens for document in documents),
        causes=dict(causes),
    )
