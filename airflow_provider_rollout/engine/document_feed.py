"""Documents from a reading thread to the event loop, without those of done chunks.

Receives: a way to open the input at a place, and which chunks are done.        Hands on: NumberedDocuments, in order.
Invariants: reading never runs on the event loop and is at most ``capacity`` documents ahead. Done chunks are jumped over where they
stand, so that a resume reads only what is open.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Self

from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import InputError

__all__ = ["DocumentFeed", "OpenAt", "number_documents"]

OpenAt = Callable[[Position, int], Iterator[NumberedDocument]]
NextGap = Callable[[int, Position], tuple[int, Position]]

_BATCH_DOCUMENTS = 64
_BATCH_S = 0.05  # a slow source hands over what it has


class DocumentFeed:
    """The open input of one rank; made by `open`, which closes it too."""

    def __init__(self, documents: Iterator[NumberedDocument], capacity: int) -> None:
        self._documents = documents
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._queue: asyncio.Queue[list[NumberedDocument] | None] = asyncio.Queue(max(1, capacity // _BATCH_DOCUMENTS))
        self._ready: deque[NumberedDocument] = deque()
        self._refilling = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, open_at: OpenAt, next_gap: NextGap, *, records_per_chunk: int, capacity: int
    ) -> AsyncIterator[Self]:
        """Start reading; an error of the input ends the block with its exception."""
        feed = cls(_jump_done(open_at, next_gap, records_per_chunk), capacity)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(feed._read())
            try:
                yield feed
            finally:
                reading.cancel()
                feed._thread.shutdown(wait=False, cancel_futures=True)

    async def get(self) -> NumberedDocument | None:
        """The next document; None when there is none, now and ever after."""
        if self._ready:
            return self._ready.popleft()
        async with self._refilling:  # one waits for the reader, and the others find what it was given
            while not self._ready:
                batch = await self._queue.get()
                if batch is None:
                    self._queue.put_nowait(None)
                    return None
                self._ready.extend(batch)
            return self._ready.popleft()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := await loop.run_in_executor(self._thread, self._take):
            await self._queue.put(batch)
        await self._queue.put(None)

    def _take(self) -> list[NumberedDocument]:
        batch: list[NumberedDocument] = []
        until_s = time.monotonic() + _BATCH_S
        for document in self._documents:
            batch.append(document)
            if len(batch) >= _BATCH_DOCUMENTS or time.monotonic() >= until_s:
                break
        return batch


def number_documents(documents: Iterable[Document], records_per_chunk: int) -> OpenAt:
    """Number documents that come from the caller's own iterable, which can be read only once and in order.

    Raises:
        InputError: while reading: the iterable gives something else than a Document.
    """
    numbered = _number(iter(documents), records_per_chunk)

    def open_at(_position: Position, number: int) -> Iterator[NumberedDocument]:
        return (document for document in numbered if document.number >= number)

    return open_at


def _number(documents: Iterator[Document], records_per_chunk: int) -> Iterator[NumberedDocument]:
    seen: dict[str, int] = {}
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InputError(f"input number {number} is {type(document).__name__} and no Document")
        if number % records_per_chunk == 0:
            seen = {}
        occurrence = seen.get(document.id, 0)
        seen[document.id] = occurrence + 1
        yield NumberedDocument(document, number, number // records_per_chunk, occurrence, Position(0, number + 1))


def _jump_done(open_at: OpenAt, next_gap: NextGap, records_per_chunk: int) -> Iterator[NumberedDocument]:
    number, position = next_gap(0, Position())
    while True:
        gap = (number, position)
        for document in open_at(position, number):
            yield document
            number, position = document.number + 1, document.end
            if number % records_per_chunk == 0:
                gap = next_gap(number, position)
                if gap != (number, position):
                    break
        else:
            return
        number, position = gap
