"""A rank's parts of the input, as numbered Documents.

Receives: the pinned plan and where to go on.        Hands on: NumberedDocuments, in input order, one at a time.
Invariants: every row of the rank's parts is one document or one counted bad row; the same plan gives the same documents
with the same numbers on every attempt. Reading on from the end of any document gives exactly what follows it. A shard that is not
the one in the plan is refused. A shard of zero bytes is an empty shard, and counted as such.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import BadRowError, ObjectChangedError, ObjectNotFoundError, ShardError
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, Part, Shard, open_shard_store, shard_format
from airflow_provider_rollout.engine.storage.object_store import ObjectInfo, StoreOptions
from airflow_provider_rollout.engine.storage.row_decoder import NotADocumentError, decode_row
from airflow_provider_rollout.engine.storage.shard_rows import RawRow, raw_rows

__all__ = ["ReadStats", "ShardCounts", "read_documents"]

_MAX_EXAMPLES = 5
_BUFFER_BYTES = 1024 * 1024
_CHANGED = "it has been written again since the plan was made; put it back, or begin anew"


@dataclass(slots=True)
class ShardCounts:
    """What one shard has given so far."""

    documents: int = 0
    bad_rows: int = 0


@dataclass(slots=True)
class ReadStats:
    """What a reader has met so far; the reader's thread writes it.

    Attributes:
        documents: documents handed out.
        bad_rows: rows that are no documents.
        trailing_bad_rows: those of them that no document has followed yet; the others are counted in the documents.
        bad_row_examples: where the first five are and what is wrong with them.
        empty_shards: URIs of the shards of zero bytes.
        shards: counts by URI.
    """

    documents: int = 0
    bad_rows: int = 0
    trailing_bad_rows: int = 0
    bad_row_examples: list[str] = field(default_factory=list)
    empty_shards: list[str] = field(default_factory=list)
    shards: dict[str, ShardCounts] = field(default_factory=dict)


def read_documents(
    plan: InputPlan,
    rank: int,
    reader: ReaderConfig,
    records_per_chunk: int,
    *,
    start: Position | None = None,
    start_number: int = 0,
    options: StoreOptions | None = None,
    stats: ReadStats | None = None,
) -> Iterator[NumberedDocument]:
    """Read a rank's documents. Blocks: run it in a thread.

    Args:
        plan: the pinned plan.
        rank: whose parts.
        reader: how rows become documents.
        records_per_chunk: after so many documents a new chunk begins.
        start: the ``end`` of the last document of the last finished chunk; by default the beginning.
        start_number: how many documents come before it, a multiple of ``records_per_chunk``.
        options: how to reach the shards.
        stats: counts what is read.

    Raises:
        ShardError: a shard is gone, changed, torn, mislabelled, or lacks the text column.
        BadRowError: a row is no document, and ``on_bad_row`` is "fail".
        StoreError: a store cannot be reached.
    """
    start, stats = start or Position(), stats or ReadStats()
    number = start_number
    occurrences: dict[str, int] = {}
    for end, document in _documents(plan, rank, reader, start, options=options, stats=stats):
        if number % records_per_chunk == 0:
            occurrences = {}
        occurrence = occurrences.get(document.id, 0)
        occurrences[document.id] = occurrence + 1
        bad_rows, stats.trailing_bad_rows = stats.trailing_bad_rows, 0
        yield NumberedDocument(document, number, number // records_per_chunk, occurrence, end, bad_rows)
        number += 1


def _documents(
    plan: InputPlan, rank: int, reader: ReaderConfig, start: Position, *, options: StoreOptions | None, stats: ReadStats
) -> Iterator[tuple[Position, Document]]:
    for part_index, part in enumerate(plan.parts_of(rank)):
        if part_index < start.part_index:
            continue
        shard = plan.shards[part.shard_index]
        offset = start.offset if part_index == start.part_index else 0
        counts = stats.shards.setdefault(shard.uri, ShardCounts())
        for row in _rows(shard, part, offset, reader, options=options, stats=stats):
            try:
                if isinstance(row.values, NotADocumentError):
                    raise row.values
                document = decode_row(row.values, reader)
            except NotADocumentError as reason:
                _bad_row(f"{shard.uri}: {row.place()} {reason}", reader, stats, counts)
                continue
            stats.documents += 1
            counts.documents += 1
            yield Position(part_index, row.end), document


def _bad_row(message: str, reader: ReaderConfig, stats: ReadStats, counts: ShardCounts) -> None:
    if reader.on_bad_row == "fail":
        raise BadRowError(f'{message}; correct it, or use on_bad_row="skip" to leave such rows out and count them')
    counts.bad_rows += 1
    stats.bad_rows += 1
    stats.trailing_bad_rows += 1
    if len(stats.bad_row_examples) < _MAX_EXAMPLES:
        stats.bad_row_examples.append(message[:500])


def _rows(
    shard: Shard, part: Part, offset: int, reader: ReaderConfig, *, options: StoreOptions | None, stats: ReadStats
) -> Iterator[RawRow]:
    shape = shard_format(shard.uri)
    if shape is None:
        raise ShardError(f"{shard.uri}: unknown format; the plan was made by another release, begin anew")
    try:
        with _open(shard, options) as file:
            if shard.size_bytes == 0:
                stats.empty_shards.append(shard.uri)
                return
            yield from raw_rows(file, shape, part, offset, reader.text_field)
            _check_unchanged(shard)
    except ShardError as error:
        raise ShardError(f"{shard.uri}: {error}") from None
    except ObjectChangedError:
        raise ShardError(f"{shard.uri}: {_CHANGED}") from None
    except (ObjectNotFoundError, FileNotFoundError):
        raise ShardError(f"{shard.uri}: it is gone since the plan was made; put it back, or begin anew") from None
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        what = "is torn" if isinstance(error, EOFError) else "cannot be read"
        expected = f"{shape.compression or ''} {shape.kind}".strip()
        raise ShardError(f"{shard.uri} {what} as {expected}: {error}; put the whole file in its place") from error


def _open(shard: Shard, options: StoreOptions | None) -> BinaryIO:
    if "://" in shard.uri:
        store, key = open_shard_store(shard.uri, options)
        return store.open_reader(key, ObjectInfo(key, shard.size_bytes, shard.version))
    _check_unchanged(shard)
    return Path(shard.uri).open("rb", buffering=_BUFFER_BYTES)


def _check_unchanged(shard: Shard) -> None:
    """A remote store checks the version with every read; a local file is looked at before and after."""
    if "://" in shard.uri:
        return
    status = Path(shard.uri).stat()
    if (status.st_size, str(status.st_mtime_ns)) != (shard.size_bytes, shard.version):
        raise ShardError(_CHANGED)
