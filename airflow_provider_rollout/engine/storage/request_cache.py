"""Finished requests and finished documents of open chunks: SQLite for look-ups, immutable segments in the store for durability.

Receives: rows from the rollouts.        Hands on: what an earlier attempt had finished, and a chunk's documents in input order.
Invariants: the SQLite files are this attempt's scratch; the store is the truth, so the scratch can be lost at any time and has no
journal. A row is durable when its segment is written, at most ``FLUSH_S`` after it was put. The requests of a document that ended well
before they were flushed are not written: whoever resumes finds the document. A segment is deleted when all its chunks are committed. A
segment that is torn or foreign is named and skipped: its requests are asked again. One thread writes to SQLite; the loop only looks up,
in a file that nobody writes to any more.
Source: measured, rows of 5 KB: 13 us of CPU to insert, select and delete one; 30 us with a write-ahead log and secure_delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar

from airflow_provider_rollout.engine.exceptions import RequestCacheError
from airflow_provider_rollout.engine.storage import layout, segment
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.segment import Row

__all__ = ["FLUSH_ROWS", "FLUSH_S", "RequestCache"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FLUSH_S = 2.0
FLUSH_ROWS = 1000
_SEGMENTS_AHEAD = 32  # 5 MB each, of rows of 5 KB
_REQUESTS_FILE, _DOCUMENTS_FILE = "requests.sqlite", "documents.sqlite"

_SCRATCH = """
PRAGMA page_size = 16384;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA secure_delete = OFF;
"""
_REQUESTS = """
CREATE TABLE requests (key BLOB NOT NULL, value BLOB NOT NULL);
"""
_FIND_REQUEST = "SELECT value FROM requests WHERE key = ? ORDER BY rowid DESC LIMIT 1"
_DOCUMENTS = """
CREATE TABLE documents (chunk_index INTEGER NOT NULL, number INTEGER NOT NULL, value BLOB NOT NULL);
CREATE UNIQUE INDEX document_number ON documents (chunk_index, number);
"""


class RequestCache:
    """The cache of one attempt of one rank; made by `open`, which closes it too."""

    def __init__(self, store: ObjectStore, attempt: Attempt, fingerprint: str, folder: Path) -> None:
        self._store = store
        self._attempt = attempt
        self._fingerprint = fingerprint
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="request-cache")
        self._uncommitted: list[Row] = []
        self._unflushed: list[Row] = []
        self._unflushed_requests: dict[int, list[Row]] = {}
        self._sequence = 0
        self._segments: dict[str, set[int]] = {}
        self._flush_lock = asyncio.Lock()
        self._full = asyncio.Event()
        self.restored_documents: dict[tuple[int, int], str] = {}
        self._restored: sqlite3.Connection | None = None
        self._connections = contextlib.ExitStack()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store: ObjectStore, attempt: Attempt, *, fingerprint: str, scratch: str | None = None
    ) -> AsyncIterator[Self]:
        """Open an empty cache in a scratch folder of its own; the folder is removed at the end."""
        folder = Path(
            _on_disk(scratch or tempfile.gettempdir(), lambda: tempfile.mkdtemp(prefix="rollout-", dir=scratch))
        )
        cache = cls(store, attempt, fingerprint, folder)
        try:
            await cache._in_thread(cache._open)
            yield cache
        finally:
            if cache._restored is not None:
                cache._restored.close()
            await cache._in_thread(cache._connections.close)
            cache._thread.shutdown()
            shutil.rmtree(folder, ignore_errors=True)

    async def restore(self, done_chunks: Collection[int], keep_document: Callable[[bytes], bool]) -> None:
        """Read the segments of earlier attempts; those of done chunks only are deleted.

        Args:
            done_chunks: chunks whose rows are no longer needed.
            keep_document: told the value of each finished document; False if the document is to be worked on again.

        ``restored_documents`` maps (chunk, number) to the key of each finished document kept.

        Raises:
            FencedError: a newer attempt owns the rank, and perhaps these segments.
        """
        keys = deque(info.key for info in await self._store.list(layout.cache(self._attempt.record.rank)))
        obsolete: list[str] = []
        loading: deque[asyncio.Task[tuple[str, list[Row]]]] = deque()
        # Loaded while earlier ones are inserted, and inserted in their order: of a row that was written twice, the later counts.
        async with asyncio.TaskGroup() as group:
            while keys or loading:
                while keys and len(loading) < _SEGMENTS_AHEAD:
                    loading.append(group.create_task(self._load(keys.popleft())))
                key, rows = await loading.popleft()
                kept = [
                    row
                    for row in rows
                    if row.chunk_index not in done_chunks and (row.number < 0 or keep_document(row.value))
                ]
                if not kept:
                    obsolete.append(key)
                    continue
                self._segments[key] = {row.chunk_index for row in kept}
                await self._in_thread(self._insert_restored, kept)
                self.restored_documents.update(
                    ((row.chunk_index, row.number), row.key.decode()) for row in kept if row.number >= 0
                )
        if obsolete:
            await self._attempt.check_fence()
            await self._store.delete(obsolete)
        if await self._in_thread(self._index_requests):
            self._restored = _on_disk(str(self._folder), lambda: sqlite3.connect(self._folder / _REQUESTS_FILE))

    async def _load(self, key: str) -> tuple[str, list[Row]]:
        data = await self._store.get(key)
        try:
            return key, await asyncio.to_thread(segment.decode, data, self._fingerprint)
        except segment.SegmentError as error:
            _log.warning("%s/%s is skipped: %s; its requests are asked again", self._store.uri, key, error)
            return key, []

    def get(self, key: bytes) -> bytes | None:
        """The result of a request that an earlier attempt finished, or None. Takes 10 us, and so waits for no thread.

        A row put by this attempt need not be found: a key holds its document, rollout and ordinal, and is asked once per attempt.
        """
        if self._restored is None:
            return None
        try:
            row = self._restored.execute(_FIND_REQUEST, (key,)).fetchone()
        except sqlite3.Error as error:  # the job's failure and not the document's
            raise _unusable(str(self._folder), error) from error
        return row[0] if row else None

    def put(self, chunk_index: int, number: int, key: bytes, value: bytes) -> None:
        """Keep a finished request of a document."""
        self._unflushed_requests.setdefault(number, []).append(Row(chunk_index, -1, key, value))
        if len(self._unflushed) + len(self._unflushed_requests) >= FLUSH_ROWS:
            self._full.set()

    def put_document(self, chunk_index: int, number: int, key: str, value: bytes, *, is_settled: bool = True) -> None:
        """Keep a finished document.

        Args:
            chunk_index: the chunk it belongs to.
            number: its number.
            key: its key.
            value: the encoded result.
            is_settled: it will not be worked on again, so that its requests need not be kept.
        """
        row = Row(chunk_index, number, key.encode("utf-8", "replace"), value)
        self._uncommitted.append(row)
        self._unflushed.append(row)
        if is_settled:
            self._unflushed_requests.pop(number, None)
        if len(self._unflushed) + len(self._unflushed_requests) >= FLUSH_ROWS:
            self._full.set()

    async def document_rows(self, chunk_index: int) -> list[bytes]:
        """The finished documents of a chunk, in input order."""
        await self._commit()
        return await self._in_thread(self._select_documents, chunk_index)

    async def flush(self) -> None:
        """Make every row put so far durable.

        Raises:
            StoreError: the store refused the segment.
        """
        async with self._flush_lock:
            await self._commit()
            rows = [*self._unflushed, *itertools.chain.from_iterable(self._unflushed_requests.values())]
            self._unflushed, self._unflushed_requests = [], {}
            if not rows:
                return
            key = layout.segment(self._attempt.record.rank, self._attempt.epoch, self._sequence)
            # A cancelled write may have reached the store, so its name is not used again.
            self._sequence += 1
            try:
                await self._store.create(key, await asyncio.to_thread(segment.encode, rows, self._fingerprint))
            except BaseException:
                self._unflushed = rows + self._unflushed
                raise
            self._segments[key] = {row.chunk_index for row in rows}

    async def forget(self, chunk_index: int) -> None:
        """Drop a committed chunk's rows, and the segments that hold nothing else."""
        await self._in_thread(self._delete_chunk, chunk_index)
        for chunks in self._segments.values():
            chunks.discard(chunk_index)
        obsolete = [key for key, chunks in self._segments.items() if not chunks]
        for key in obsolete:
            del self._segments[key]
        await self._store.delete(obsolete)

    async def keep_durable(self) -> None:
        """Flush for ever, by time and by number of rows; a task of the runner's."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._full.wait()
            self._full.clear()
            await self.flush()

    async def _commit(self) -> None:
        rows, self._uncommitted = self._uncommitted, []
        if rows:
            await self._in_thread(self._insert_documents, rows)

    async def _in_thread(self, call: Callable[..., _T], *arguments: object) -> _T:
        work = lambda: _on_disk(str(self._folder), lambda: call(*arguments))  # noqa: E731 (one expression)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        self._requests = self._connect(_REQUESTS_FILE, _REQUESTS)
        self._documents = self._connect(_DOCUMENTS_FILE, _DOCUMENTS)

    def _connect(self, name: str, schema: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._folder / name, isolation_level=None)
        self._connections.callback(connection.close)
        connection.executescript(_SCRATCH + schema)
        return connection

    def _insert_restored(self, rows: list[Row]) -> None:
        self._requests.execute("BEGIN")
        requests = [(row.key, row.value) for row in rows if row.number < 0]
        self._requests.executemany("INSERT INTO requests (key, value) VALUES (?, ?)", requests)
        self._requests.execute("COMMIT")
        self._insert_documents([row for row in rows if row.number >= 0])

    def _insert_documents(self, rows: list[Row]) -> None:
        self._documents.execute("BEGIN")
        self._documents.executemany(
            "INSERT OR REPLACE INTO documents (chunk_index, number, value) VALUES (?, ?, ?)",
            [(row.chunk_index, row.number, row.value) for row in rows],
        )
        self._documents.execute("COMMIT")

    def _index_requests(self) -> bool:
        """Make them findable, all at once: twice as fast as one by one; whether there are any."""
        self._requests.execute("CREATE INDEX request_key ON requests (key)")
        return self._requests.execute("SELECT 1 FROM requests LIMIT 1").fetchone() is not None

    def _select_documents(self, chunk_index: int) -> list[bytes]:
        query = "SELECT value FROM documents WHERE chunk_index = ? ORDER BY number"
        return [row[0] for row in self._documents.execute(query, (chunk_index,))]

    def _delete_chunk(self, chunk_index: int) -> None:
        self._documents.execute("DELETE FROM documents WHERE chunk_index = ?", (chunk_index,))


def _on_disk(folder: str, call: Callable[[], _T]) -> _T:
    """Run a call on the scratch folder; its errors name the folder and what to do."""
    try:
        return call()
    except (sqlite3.Error, OSError) as error:
        raise _unusable(folder, error) from error


def _unusable(folder: str, error: Exception) -> RequestCacheError:
    return RequestCacheError(
        f"the scratch folder {folder} cannot be used: {error}; free space there, or set TMPDIR to a writable local folder"
    )
