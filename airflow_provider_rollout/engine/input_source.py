"""The input of one rank, whatever it comes from: shards under a pinned plan, or the caller's own documents.

Receives: URIs and globs, or Documents.        Hands on: InputSource: how to read from a place on, and an identity for the fingerprint.
Invariant: shards are read as they were when the run began; a shard that has changed since is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Position
from airflow_provider_rollout.engine.document_feed import OpenAt, number_documents
from airflow_provider_rollout.engine.exceptions import InputError
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, Part, make_plan
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.pinned import OnChange, pin_plan
from airflow_provider_rollout.engine.storage.shard_reader import ReadStats, read_documents

__all__ = ["InputSource", "open_input"]

_ESTIMATE_FROM = 0.001  # of the input: below that an estimate of the whole is noise


@dataclass(frozen=True, slots=True)
class InputSource:
    """Where a rank's documents come from.

    Attributes:
        open_at: reads from a place on.
        identity: what the fingerprint knows of it.
        trailing_bad_rows: bad rows after the last document, once all is read.
        fraction_before: the share of the input before a place, 0 to 1, as far as sizes tell.
        shard_of: the URI of the shard that a part belongs to, by the part's index; None for the caller's own documents.
    """

    open_at: OpenAt
    identity: Any
    trailing_bad_rows: Callable[[], int]
    fraction_before: Callable[[Position], float]
    shard_of: Callable[[int], str | None] = lambda _part_index: None

    def estimate_total(self, documents_read: int, read_to: Position) -> int | None:
        """Documents in the whole input, judged by how far those read have come; None when that tells nothing yet."""
        fraction = self.fraction_before(read_to)
        return round(documents_read / fraction) if fraction >= _ESTIMATE_FROM else None


async def open_input(
    data: Sequence[str] | Iterable[Document],
    store: ObjectStore,
    *,
    rank: int,
    world_size: int,
    reader: ReaderConfig,
    records_per_chunk: int,
    on_change: OnChange,
    options: StoreOptions | None,
) -> InputSource:
    """Find the input of a rank.

    Args:
        data: one or more URIs or globs, pinned in the run's plan; or this rank's Documents.
        store: holds the plan.
        rank: which share of the shards.
        world_size: how many shares there are.
        reader: how rows become documents.
        records_per_chunk: documents per chunk.
        on_change: what a changed input does.
        options: how to reach S3.

    Raises:
        InputError: there is no such input.
        FingerprintMismatchError: the input has changed since the run began.
    """
    sources = [data] if isinstance(data, str) else data
    if not (isinstance(sources, Sequence) and sources and all(isinstance(source, str) for source in sources)):
        if isinstance(data, str) or not isinstance(data, Iterable):
            raise InputError(f"data is {type(data).__name__}; give URIs of shards, or Documents")
        documents = cast("Iterable[Document]", data)
        return InputSource(
            number_documents(documents, records_per_chunk), "documents", lambda: 0, lambda _position: 0.0
        )
    plan = await pin_plan(store, await make_plan(cast("Sequence[str]", sources), world_size, options), on_change)
    stats = ReadStats()
    parts, weights = plan.parts_of(rank), _weights(plan, rank)
    return InputSource(
        open_at=lambda start, number: read_documents(
            plan, rank, reader, records_per_chunk, start=start, start_number=number, options=options, stats=stats
        ),
        identity={"plan": plan.digest(), "text_field": reader.text_field, "id_field": reader.id_field},
        trailing_bad_rows=lambda: stats.trailing_bad_rows,
        fraction_before=lambda position: _fraction_before(plan, parts, weights, position),
        shard_of=lambda part_index: plan.shards[parts[part_index].shard_index].uri,
    )


def _weights(plan: InputPlan, rank: int) -> list[float]:
    """Bytes of each part of a rank; parts of one shard weigh the same."""
    parts_per_shard = Counter(part.shard_index for part in plan.parts)
    return [
        plan.shards[part.shard_index].size_bytes / parts_per_shard[part.shard_index] for part in plan.parts_of(rank)
    ]


def _fraction_before(plan: InputPlan, parts: Sequence[Part], weights: Sequence[float], position: Position) -> float:
    """Within a part only a unit that has a known end tells how far."""
    whole = sum(weights)
    if not whole or position.part_index >= len(parts):
        return 0.0
    part = parts[position.part_index]
    end = part.end if part.end is not None else _end_of(plan, part)
    within = (position.offset - part.start) / (end - part.start) if end and end > part.start else 0.0
    return (sum(weights[: position.part_index]) + within * weights[position.part_index]) / whole


def _end_of(plan: InputPlan, part: Part) -> int | None:
    """The size of a plain JSONL shard, whose offsets are bytes; other shards do not tell."""
    shard = plan.shards[part.shard_index]
    return shard.size_bytes if shard.uri.endswith((".jsonl", ".ndjson", ".json")) else None
