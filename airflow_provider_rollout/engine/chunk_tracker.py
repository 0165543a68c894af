"""Which chunks are complete. Pure.

Receives: every document as it is read and as it ends.        Hands on: chunks whose documents have all ended.
Invariant: a chunk is complete once its last document has been read and all of its documents have ended, in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_rollout.engine.document import NumberedDocument, Position

__all__ = ["ChunkTracker", "OpenChunk"]


@dataclass(slots=True)
class OpenChunk:
    """A chunk that is being worked on."""

    chunk_index: int
    first_number: int
    end: Position
    read: int = 0
    ended: int = 0
    bad_rows: int = 0
    is_closed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all of its documents have been read and have ended."""
        return self.is_closed and self.ended == self.read


class ChunkTracker:
    """The open chunks of one rank."""

    def __init__(self, records_per_chunk: int) -> None:
        self._records_per_chunk = records_per_chunk
        self.open: dict[int, OpenChunk] = {}

    def read(self, document: NumberedDocument) -> None:
        """A document was read; documents come in order of their number."""
        chunk = self.open.get(document.chunk_index)
        if chunk is None:
            chunk = self.open[document.chunk_index] = OpenChunk(document.chunk_index, document.number, document.end)
        chunk.read += 1
        chunk.bad_rows += document.bad_rows
        chunk.end = document.end
        chunk.is_closed = chunk.read == self._records_per_chunk

    def end(self, chunk_index: int) -> OpenChunk | None:
        """A document of the chunk ended; hands out the chunk if it is complete now."""
        self.open[chunk_index].ended += 1
        return self._take(chunk_index)

    def input_ended(self) -> list[OpenChunk]:
        """There is no further document; hands out the chunks that are complete by that."""
        complete = []
        for chunk in list(self.open.values()):
            chunk.is_closed = True
            if (taken := self._take(chunk.chunk_index)) is not None:
                complete.append(taken)
        return complete

    def _take(self, chunk_index: int) -> OpenChunk | None:
        return self.open.pop(chunk_index) if self.open[chunk_index].is_complete else None
