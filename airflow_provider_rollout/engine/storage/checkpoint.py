"""What is finished: one commit record per chunk.

Receives: finished chunks.        Hands on: where to go on reading, and the sums for the manifest.
Invariants: a chunk is done by its commit record alone. The record is written after the dead letters and the output object, each once,
through the attempt; so whatever an attempt leaves when it dies is either a done chunk or replaced by the next attempt. An unreadable
record is an error, never an absent one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec

from airflow_provider_rollout.engine.document import Position
from airflow_provider_rollout.engine.exceptions import CheckpointError, ManifestError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["Checkpoint", "ChunkCounts", "ChunkRecord", "FinishedChunk", "clear_rank", "remove_proofs"]

_PARALLEL_READS = 32


class ChunkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a chunk's documents; tokens and requests count every call that had an answer, cached or not."""

    documents: int
    written: int
    failed: int
    dropped: int
    rollouts_written: int
    rollouts_failed: int
    bad_rows: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    causes: dict[str, int] = msgspec.field(default_factory=dict)


class ChunkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The commit record of one chunk.

    Attributes:
        first_number: number of its first document.
        part_index, offset: where reading goes on after it.
        output_key: its output object, None when no document was written.
        dead_letters_key: its dead letters, None when nothing failed.
        failed_numbers: failed documents; they have no row in the output object.
        dropped: number and key of each dropped document; they have no row either.
        retryable_numbers: written documents some of whose rollouts failed.
    """

    chunk_index: int
    first_number: int
    part_index: int
    offset: int
    counts: ChunkCounts
    output_key: str | None
    output_bytes: int
    output_sha256: str | None
    dead_letters_key: str | None
    epoch: int
    fingerprint: str
    failed_numbers: list[int] = msgspec.field(default_factory=list)
    dropped: dict[int, str] = msgspec.field(default_factory=dict)
    retryable_numbers: list[int] = msgspec.field(default_factory=list)
    schema_version: int = 1

    @property
    def end(self) -> Position:
        """Where reading goes on after this chunk."""
        return Position(self.part_index, self.offset)

    @property
    def end_number(self) -> int:
        """Number of the first document after this chunk."""
        return self.first_number + self.counts.documents


class FinishedChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk whose documents have all ended; what is to be written. ``output`` and ``dead_letters`` are encoded already."""

    chunk_index: int
    first_number: int
    end: Position
    counts: ChunkCounts
    output: bytes | None
    dead_letters: bytes | None
    failed_numbers: list[int]
    dropped: dict[int, str]
    retryable_numbers: list[int]


class Checkpoint:
    """The done chunks of one rank."""

    def __init__(self, store: ObjectStore, rank: int, fingerprint: str, records: Iterable[ChunkRecord]) -> None:
        self._store = store
        self._rank = rank
        self._fingerprint = fingerprint
        self.done: dict[int, ChunkRecord] = {record.chunk_index: record for record in records}
        self._by_first_number = {record.first_number: record for record in self.done.values()}

    @classmethod
    async def load(cls, store: ObjectStore, rank: int, fingerprint: str) -> Checkpoint:
        """Read all commit records of a rank.

        Raises:
            CheckpointError: one cannot be read, or belongs to another configuration.
        """
        infos = await store.list(layout.chunks(rank))
        gate = asyncio.Semaphore(_PARALLEL_READS)

        async def read(key: str) -> ChunkRecord:
            async with gate:
                data = await store.get(key)
            try:
                record = msgspec.json.decode(data, type=ChunkRecord)
            except msgspec.DecodeError as error:
                raise CheckpointError(
                    f"{store.uri}/{key} is not a commit record: {error}; restore it, or clean the run's state"
                ) from None
            if record.fingerprint != fingerprint:
                raise CheckpointError(
                    f'{store.uri}/{key} was written by a job with another configuration; use on_config_change="restart" to begin anew'
                )
            return record

        return cls(store, rank, fingerprint, await asyncio.gather(*(read(info.key) for info in infos)))

    @property
    def end_number(self) -> int:
        """Number of the first document after the last done chunk."""
        return max((record.end_number for record in self.done.values()), default=0)

    def next_gap(self, number: int, position: Position) -> tuple[int, Position]:
        """Skip the done chunks that begin at ``number``.

        Args:
            number: the next document number.
            position: where it stands in the input.

        Returns:
            The number and place of the first document that is not in a done chunk.
        """
        while (record := self._by_first_number.get(number)) is not None and record.counts.documents:
            number, position = record.end_number, record.end
        return number, position

    async def commit(
        self, attempt: Attempt, outputs: ObjectStore, chunk: FinishedChunk, *, extension: str
    ) -> ChunkRecord:
        """Write a chunk: dead letters, output object, commit record.

        Raises:
            FencedError: a newer attempt owns the output.
        """
        dead_letters_key = await _write(
            attempt, self._store, layout.dead_letters(self._rank, chunk.chunk_index), chunk.dead_letters
        )
        output_key = await _write(
            attempt, outputs, layout.output(self._rank, chunk.chunk_index, extension), chunk.output
        )
        digest = await asyncio.to_thread(hashlib.sha256, chunk.output or b"")
        record = ChunkRecord(
            chunk_index=chunk.chunk_index,
            first_number=chunk.first_number,
            part_index=chunk.end.part_index,
            offset=chunk.end.offset,
            counts=chunk.counts,
            output_key=output_key,
            output_bytes=len(chunk.output or b""),
            output_sha256=digest.hexdigest() if output_key else None,
            dead_letters_key=dead_letters_key,
            epoch=attempt.epoch,
            fingerprint=self._fingerprint,
            failed_numbers=chunk.failed_numbers,
            dropped=chunk.dropped,
            retryable_numbers=chunk.retryable_numbers,
        )
        await attempt.create(self._store, layout.chunk(self._rank, chunk.chunk_index), msgspec.json.encode(record))
        self.done[chunk.chunk_index] = self._by_first_number[record.first_number] = record
        return record

    async def check_outputs(self, outputs: ObjectStore) -> None:
        """See that every output object is there, so that no manifest names one that is not.

        Raises:
            ManifestError: one is missing or has another size than its commit record says.
        """
        present = {info.key: info.size_bytes for info in await outputs.list(layout.output_prefix(self._rank))}
        for record in self.done.values():
            if record.output_key is not None and present.get(record.output_key) != record.output_bytes:
                raise ManifestError(
                    f"{outputs.uri}/{record.output_key} is not there, or is not the object that was written; the manifest is not written: "
                    "restore the object, or clean the run's state and begin anew"
                )

    def reopen(self, chunk_index: int) -> None:
        """Count a chunk as open again; the caller has removed its record."""
        record = self.done.pop(chunk_index)
        del self._by_first_number[record.first_number]


async def _write(attempt: Attempt, store: ObjectStore, key: str, data: bytes | None) -> str | None:
    """Write an object that a commit record is to name, or see that there is none: an attempt that died may have left one."""
    if data is None:
        await store.delete([key])
        return None
    await attempt.create(store, key, data)
    return key


async def clear_rank(store: ObjectStore, outputs: ObjectStore, attempt: Attempt) -> None:
    """Remove what a rank has written, the proofs first: an interrupted clearing leaves nothing that counts as done.

    Raises:
        FencedError: a newer attempt owns the rank; what is left is its own.
    """
    rank = attempt.record.rank
    await remove_proofs(store, outputs, attempt)
    for prefix in (layout.chunks(rank), f"failed/{rank:05d}/", layout.cache(rank)):
        keys = [info.key for info in await store.list(prefix)]
        await attempt.check_fence()
        await store.delete(keys)
    keys = [info.key for info in await outputs.list(layout.output_prefix(rank)) if "/" not in info.key]
    await attempt.check_fence()
    await outputs.delete(keys)


async def remove_proofs(store: ObjectStore, outputs: ObjectStore, attempt: Attempt) -> None:
    """Take back that the rank is done, and then that the run is: `finish_run` relies on this order.

    Raises:
        FencedError: a newer attempt owns the rank.
    """
    await attempt.check_fence()
    await store.delete([layout.rank_manifest(attempt.record.rank)])
    await outputs.delete([layout.SUCCESS, layout.MANIFEST])
