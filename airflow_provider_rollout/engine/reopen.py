"""Done chunks whose failed documents are to be asked again.

Receives: the commit records of a rank.        Hands on: the same chunks, open, with their good documents in the request cache.
Invariants: the good documents are durable in the cache before the chunk's commit record goes, so nothing is asked again but what
failed. The proofs go first: while a chunk is open, no manifest and no ``_SUCCESS`` says that the run is done.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import msgspec

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.exceptions import CheckpointError
from airflow_provider_rollout.engine.rollout import FinishedDocument
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import Checkpoint, ChunkRecord, remove_proofs
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import OutputRow, OutputWriter, read_rows
from airflow_provider_rollout.engine.storage.request_cache import RequestCache

__all__ = ["chunks_with_failures", "reopen_chunks"]


def chunks_with_failures(checkpoint: Checkpoint) -> list[ChunkRecord]:
    """The done chunks in which a rollout failed."""
    return [record for record in checkpoint.done.values() if record.counts.rollouts_failed]


async def reopen_chunks(
    records: list[ChunkRecord],
    *,
    store: ObjectStore,
    outputs: ObjectStore,
    checkpoint: Checkpoint,
    cache: RequestCache,
    attempt: Attempt,
    writer: OutputWriter,
) -> None:
    """Turn done chunks into open ones; with none, see that nothing says the rank is done, for it is not.

    Raises:
        CheckpointError: an output object is not the one that its commit record names.
        FencedError: a newer attempt owns the rank.
    """
    for record in records:
        kept = await _kept_documents(record, store, outputs, writer)
        for document in kept:
            cache.put_document(record.chunk_index, document.number, document.key, msgspec.json.encode(document))
            cache.restored_documents[record.chunk_index, document.number] = document.key
    await cache.flush()
    await remove_proofs(store, outputs, attempt)
    for record in records:
        await attempt.check_fence()
        await store.delete([layout.chunk(attempt.record.rank, record.chunk_index)])
        checkpoint.reopen(record.chunk_index)


async def _kept_documents(
    record: ChunkRecord, store: ObjectStore, outputs: ObjectStore, writer: OutputWriter
) -> list[FinishedDocument]:
    rows = await _output_rows(record, outputs, writer)
    failed_ids = await _failed_ids(record, store)
    again = {*record.failed_numbers, *record.retryable_numbers}
    written = iter(rows)
    seen: Counter[str] = Counter()
    kept = []
    for number in range(record.first_number, record.end_number):
        if number in record.dropped:
            key = record.dropped[number]
            kept.append(_document(number, key, None))
            repeated, _, times = key.rpartition("#")  # an id may hold the sign too
            seen[repeated if repeated in seen and times == str(seen[repeated]) else key] += 1
            continue
        row = None if number in failed_ids and number in record.failed_numbers else next(written)
        document_id = row.id if row else failed_ids[number]
        occurrence = seen[document_id]
        seen[document_id] += 1
        if row is not None and number not in again:
            kept.append(_document(number, f"{document_id}#{occurrence}" if occurrence else document_id, row))
    if kept:  # what the chunk has cost stays with it
        counts = record.counts
        kept[0] = msgspec.structs.replace(
            kept[0],
            requests=counts.requests,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
        )
    return kept


async def _output_rows(record: ChunkRecord, outputs: ObjectStore, writer: OutputWriter) -> list[OutputRow]:
    if record.output_key is None:
        return []
    data = await outputs.get(record.output_key)
    if hashlib.sha256(data).hexdigest() != record.output_sha256:
        raise CheckpointError(
            f"{outputs.uri}/{record.output_key} is not the object that its commit record names; restore it, or run without retry_failed"
        )
    return read_rows(data, writer.extension, writer.metadata_key)


async def _failed_ids(record: ChunkRecord, store: ObjectStore) -> dict[int, str]:
    if record.dead_letters_key is None:
        return {}
    lines = (await store.get(record.dead_letters_key)).split(b"\n")
    letters = [strict_json.loads(line) for line in lines if line]
    return {letter["document_number"]: letter["document_id"] for letter in letters}


def _document(number: int, key: str, row: OutputRow | None) -> FinishedDocument:
    return FinishedDocument(
        number=number,
        key=key,
        id=row.id if row else key,
        text=row.text if row else "",
        metadata=msgspec.Raw(strict_json.dumps(row.metadata if row else {})),
        media=msgspec.Raw(strict_json.dumps(row.media if row else [])),
        values=[msgspec.Raw(strict_json.dumps(value)) for value in row.results] if row else [],
        failures=[],
        outcome="written" if row else "dropped",
        requests=0,
        prompt_tokens=0,
        completion_tokens=0,
    )
