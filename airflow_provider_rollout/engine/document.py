"""One input row, as a rollout function sees it, and the identity by which its results are found again.

Receives: fields of a row.        Hands on: Document to the rollout function, NumberedDocument between the rooms.
Invariants: a document number is the row's place in this rank's pinned input, so number and chunk never change between attempts. The
key is the id plus its occurrence within the chunk: two rows with one id are two documents, and no earlier chunk has to be read to tell.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rollout.engine import strict_json

__all__ = ["Document", "Media", "NumberedDocument", "Position", "content_id"]


@dataclass(slots=True)
class Media:
    """One attachment of a document: an image, a sound, a video."""

    id: str
    type: str
    url: str | None = None
    media_bytes: bytes | None = None
    alt: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """One input row. The rollout function owns it while it runs and may add to ``metadata``."""

    text: str
    id: str
    media: list[Media] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a reader stands in this rank's parts.

    Attributes:
        part_index: which of the rank's parts, 0-based.
        offset: where in that part; uncompressed bytes for JSONL, rows for Parquet and CSV.
    """

    part_index: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class NumberedDocument:
    """A document with its place in the rank's input.

    Attributes:
        document: the row.
        number: 0-based among this rank's documents.
        chunk_index: ``number // records_per_chunk``.
        occurrence: how many documents with this id came before it in the same chunk.
        end: where to go on reading after it.
        bad_rows: rows skipped since the document before it.
    """

    document: Document
    number: int
    chunk_index: int
    occurrence: int
    end: Position
    bad_rows: int = 0

    @property
    def key(self) -> str:
        """The id, with ``#n`` for its n-th repetition in the chunk."""
        return self.document.id if self.occurrence == 0 else f"{self.document.id}#{self.occurrence}"


def content_id(text: str, metadata: dict[str, Any]) -> str:
    """The id of a row that has none: the first 16 bytes of the SHA-256 of its content, as hex."""
    return hashlib.sha256(strict_json.dumps([text, metadata], sort_keys=True)).hexdigest()[:32]
