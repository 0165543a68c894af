"""The signed count of what exists: one manifest per rank, one for the run.

Receives: commit records.        Hands on: RankManifest and RunManifest, and ``_SUCCESS`` when all ranks are done.
Invariants: documents in = written + failed + dropped, or nothing is written. The run's manifest is a function of the ranks' manifests
alone, so it does not matter which rank is last, nor whether two are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Self

import msgspec

from airflow_provider_rollout.engine.exceptions import ManifestError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt, utc_now
from airflow_provider_rollout.engine.storage.checkpoint import ChunkRecord
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.stored_record import read_record

__all__ = [
    "RankManifest",
    "RunManifest",
    "finish_run",
    "make_rank_manifest",
    "read_rank_manifest",
    "read_run_manifest",
    "write_rank_manifest",
]

_TOP_CAUSES = 10


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the documents; tokens and requests count every answered call once, whichever attempt asked."""

    documents_in: int = 0
    documents_written: int = 0
    documents_failed: int = 0
    documents_dropped: int = 0
    rollouts_written: int = 0
    rollouts_failed: int = 0
    bad_rows: int = 0
    chunks: int = 0
    output_bytes: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    top_causes: dict[str, int] = msgspec.field(default_factory=dict)

    def __add__(self, other: Self) -> Counts:
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in Counts.__struct_fields__
            if name != "top_causes"
        }
        causes = Counter(self.top_causes) + Counter(other.top_causes)
        return Counts(**sums, top_causes=dict(causes.most_common(_TOP_CAUSES)))

    def check(self, what: str) -> None:
        """Refuse counts that do not add up."""
        ended = self.documents_written + self.documents_failed + self.documents_dropped
        if self.documents_in != ended:
            raise ManifestError(
                f"{what}: {self.documents_in} documents went in and {ended} ended; the manifest is not written"
            )


class RankManifest(Counts, frozen=True, kw_only=True):
    """What one rank wrote. ``requests_sent`` and ``cache_hits`` are of its last attempt, everything else of all."""

    rank: int
    world_size: int
    fingerprint: str
    output: str
    outputs: list[str]
    epoch: int
    finished_at: str
    requests_sent: int = 0
    cache_hits: int = 0
    schema_version: int = 1


class RunManifest(Counts, frozen=True, kw_only=True):
    """What all ranks wrote; ``outputs`` are the keys of the output objects in input order of each rank."""

    world_size: int
    fingerprint: str
    output: str
    outputs: list[str]
    finished_at: str
    schema_version: int = 1


def make_rank_manifest(
    records: Iterable[ChunkRecord],
    *,
    documents_in: int,
    trailing_bad_rows: int,
    attempt: Attempt,
    world_size: int,
    output: str,
    requests_sent: int,
    cache_hits: int,
) -> RankManifest:
    """Add up a rank's commit records.

    Raises:
        ManifestError: they do not add up to the documents that the reader saw, or do not follow one another.
    """
    ordered = sorted(records, key=lambda record: record.chunk_index)
    number, counts = 0, Counts(bad_rows=trailing_bad_rows)
    for place, record in enumerate(ordered):
        if record.chunk_index != place or record.first_number != number:
            raise ManifestError(f"chunk {place} of rank {attempt.record.rank} is missing; the manifest is not written")
        number = record.end_number
        counts += _of_chunk(record)
    if counts.documents_in != documents_in:
        raise ManifestError(
            f"rank {attempt.record.rank}: the input has {documents_in} documents and the chunks {counts.documents_in}; "
            "the manifest is not written"
        )
    counts.check(f"rank {attempt.record.rank}")
    return RankManifest(
        **msgspec.structs.asdict(counts),
        rank=attempt.record.rank,
        world_size=world_size,
        fingerprint=attempt.record.fingerprint,
        output=output,
        outputs=[record.output_key for record in ordered if record.output_key is not None],
        epoch=attempt.epoch,
        finished_at=utc_now(),
        requests_sent=requests_sent,
        cache_hits=cache_hits,
    )


async def write_rank_manifest(store: ObjectStore, attempt: Attempt, manifest: RankManifest) -> None:
    """Say that a rank is done.

    Raises:
        FencedError: a newer attempt owns the rank.
    """
    await attempt.create(store, layout.rank_manifest(manifest.rank), msgspec.json.encode(manifest))


async def finish_run(store: ObjectStore, outputs: ObjectStore, mine: RankManifest) -> RunManifest | None:
    """Write the run's manifest and ``_SUCCESS`` if all ranks are done; None if some are not.

    A rank that is done anew removes its manifest first and these two then. If that happens while they are being written, they are taken
    back: after the write, the ranks' manifests must still be those that it was made of.
    """
    run = await _add_up(store, outputs, mine)
    while run is not None:
        if await read_run_manifest(outputs) != run or not await outputs.exists(layout.SUCCESS):
            await _delete_strays(store, outputs, run)
            await outputs.put(layout.MANIFEST, msgspec.json.format(msgspec.json.encode(run), indent=2))
            await outputs.put(layout.SUCCESS, b"")
        now = await _add_up(store, outputs, mine)
        if now == run:
            break
        await outputs.delete([layout.SUCCESS, layout.MANIFEST])
        run = now
    return run


async def _add_up(store: ObjectStore, outputs: ObjectStore, mine: RankManifest) -> RunManifest | None:
    keys = [info.key for info in await store.list(layout.MANIFESTS)]
    if len(keys) < mine.world_size:
        return None
    read = await asyncio.gather(*(read_record(store, key, RankManifest) for key in keys))
    ranks = [rank for rank in read if rank and rank.fingerprint == mine.fingerprint and rank.rank < mine.world_size]
    if len(ranks) < mine.world_size:
        return None
    counts = Counts()
    for rank in ranks:
        counts += rank
    counts.check("run")
    return RunManifest(
        **msgspec.structs.asdict(counts),
        world_size=mine.world_size,
        fingerprint=mine.fingerprint,
        output=outputs.uri,
        outputs=[key for rank in sorted(ranks, key=lambda item: item.rank) for key in rank.outputs],
        finished_at=max(rank.finished_at for rank in ranks),
    )


async def _delete_strays(store: ObjectStore, outputs: ObjectStore, run: RunManifest) -> None:
    """Remove chunks of ours that are no part of the run: a restart with fewer ranks leaves those of the ranks that are no more.

    Whoever reads the output by a glob reads what the manifest says. Uploads that killed attempts have left go too: when all ranks
    are done, none is under way.
    """
    ours = [info.key for info in await outputs.list() if layout.is_output(info.key)]
    for unfinished in (outputs, store):
        await unfinished.delete([info.key for info in await unfinished.list(layout.UPLOADS)])
    await outputs.delete(sorted(set(ours) - set(run.outputs)))


async def read_rank_manifest(store: ObjectStore, rank: int) -> RankManifest | None:
    """A rank's manifest, or None when the rank is not done."""
    return await read_record(store, layout.rank_manifest(rank), RankManifest)


async def read_run_manifest(outputs: ObjectStore) -> RunManifest | None:
    """The run's manifest, or None when not all ranks are done."""
    return await read_record(outputs, layout.MANIFEST, RunManifest)


def _of_chunk(record: ChunkRecord) -> Counts:
    counts = record.counts
    return Counts(
        documents_in=counts.documents,
        documents_written=counts.written,
        documents_failed=counts.failed,
        documents_dropped=counts.dropped,
        rollouts_written=counts.rollouts_written,
        rollouts_failed=counts.rollouts_failed,
        bad_rows=counts.bad_rows,
        chunks=1,
        output_bytes=record.output_bytes,
        requests=counts.requests,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        top_causes=counts.causes,
    )
