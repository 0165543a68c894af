"""One folder or bucket prefix as a set of objects with atomic, conditional writes.

Receives: a URI (folder, ``s3://``, ``gs://``, ``az://``), keys and bytes.        Hands on: bytes, ObjectInfo, StoreErrors.
Invariants: an object is seen whole or not at all, never torn. ``create`` has one winner. Absent is not unreadable: a
missing bucket or a refused access never looks like a missing key. No call blocks the event loop; ``open`` sends nothing.
A folder's objects are written under a hidden name beside their place and renamed, or linked for ``create``. They are
not fsynced: a killed process loses nothing that was acknowledged, a power failure may.
Source: Amazon S3 User Guide, "Conditional writes"; obstore 0.12; SeaweedFS answers 412 where AWS answers 404 (measured).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import logging
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec
import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from airflow_provider_rollout.engine.exceptions import (
    ConfigError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.folder_files import delete_files, is_temporary, write_file
from airflow_provider_rollout.engine.storage.range_reader import RangeReader
from airflow_provider_rollout.engine.storage.store_errors import FOREIGN_ERRORS, is_undecided, translate
from airflow_provider_rollout.engine.storage.store_options import StoreOptions, build_client

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode

__all__ = ["ObjectInfo", "ObjectStore", "StoreOptions"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_TELL_FROM_ATTEMPT = 5
_THREADS = 32  # as many requests wait beside each other when a state is read
_PART_BYTES = 16 * 1024 * 1024  # parts of a multipart upload; smaller objects go in one PUT
_READ_BYTES = 8 * 1024 * 1024  # one ranged GET of a reader: 100 ms of latency is then small against the transfer


class ObjectInfo(msgspec.Struct, frozen=True):
    """What a store tells of an object without its bytes.

    Attributes:
        key: relative to the store.
        size_bytes: its length.
        version: changes with every write; ETag, or generation (GCS), or inode, mtime and size (folder).
    """

    key: str
    size_bytes: int
    version: str


class ObjectStore:
    """The objects below one URI. Cheap to make; holds no resource that must be closed."""

    def __init__(self, uri: str, client: Any, *, prefix: str, folder: Path | None, options: StoreOptions) -> None:
        self.uri = uri
        self._client = client
        self._prefix = f"{prefix}/" if prefix else ""
        self._folder = folder
        self._attempts = 1 if folder is not None else options.max_attempts
        self._tag_name = "version" if uri.startswith("gs://") else "e_tag"

    @classmethod
    def open(cls, uri: str, options: StoreOptions | None = None, *, make_folder: bool = True) -> ObjectStore:
        """Open the store at a URI; a missing folder is made. An S3 URI is taken as written, without URL escapes.

        Args:
            uri: folder, ``file://``, ``s3://bucket/prefix``, ``gs://`` or ``az://``.
            options: how to reach S3; by default what the environment says.
            make_folder: whether a missing folder is made.

        Raises:
            ConfigError: no such kind of URI, or options that fit no client.
            ObjectNotFoundError: the folder is missing and not to be made.
            StoreError: the folder cannot be made.
        """
        options = options or StoreOptions.from_environment()
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme == "file":
            path = unquote(urlsplit(uri).path) if separator else uri
            return cls._open_folder(path, options, make_folder=make_folder)
        if scheme in {"s3", "s3a"}:
            bucket, _, prefix = rest.partition("/")
            if not bucket:
                raise ConfigError(f"{uri!r} names no bucket; write s3://bucket/prefix")
            prefix = prefix.strip("/")
            client = build_client("s3", bucket, options)
            return cls(f"s3://{bucket}/{prefix}".rstrip("/"), client, prefix=prefix, folder=None, options=options)
        if scheme in {"gs", "az", "abfs", "abfss", "adl", "azure"}:
            uri = uri.rstrip("/")
            return cls(uri, build_client(scheme, uri, options), prefix="", folder=None, options=options)
        raise ConfigError(f"{uri!r}: no store of kind {scheme!r}; known are folders, s3://, gs:// and az://")

    @classmethod
    def _open_folder(cls, path: str, options: StoreOptions, *, make_folder: bool) -> ObjectStore:
        folder = Path(path).expanduser().absolute()
        try:
            if make_folder:
                folder.mkdir(parents=True, exist_ok=True)
            elif not folder.is_dir():
                raise ObjectNotFoundError(f"the folder {folder} does not exist")
            client = LocalStore(folder)
        except (OSError, BaseError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise StoreError(f"the folder {folder} cannot be opened ({reason}); give one that can be written") from None
        return cls(str(folder), client, prefix="", folder=folder, options=options)

    async def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            ObjectNotFoundError: it does not exist.
            StoreError: the store cannot be reached or refuses.
        """
        return (await self.get_with_info(key))[0]

    async def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Read an object and the version that was read; raises as ``get`` does."""

        def ask() -> tuple[bytes, ObjectInfo]:
            answer = obstore.get(self._client, self._path(key))
            return bytes(answer.bytes()), self._info(answer.meta)

        return await self._call("read", key, ask)

    async def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object, whether it exists or not."""
        return await self._call("write", key, lambda: self._put(key, data, "overwrite"))

    async def create(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object that must not exist.

        If it does and holds these very bytes, it is ours: an earlier send was taken and its answer lost.

        Raises:
            ObjectExistsError: it exists with other bytes.
        """
        try:
            return await self._call("create", key, lambda: self._put(key, data, "create"))
        except (ObjectExistsError, ObjectChangedError):
            lost = ObjectExistsError(f"{self._name(key)} exists already; somebody else has created it")
            return await self._own_write(key, data, lost)

    async def replace(self, key: str, data: bytes, version: str) -> ObjectInfo:
        """Write an object that must still have this version.

        A folder has no conditional write: there the version is looked at just before, and a write of somebody else
        within that moment is lost.

        Raises:
            ObjectChangedError: it has another version, or is gone.
        """
        lost = ObjectChangedError(f"{self._name(key)} has been written or deleted by somebody else since it was read")
        mode: PutMode = "overwrite" if self._folder is not None else self._if_match(version)
        try:
            if self._folder is not None and (await self._head(key)).version != version:
                raise lost
            return await self._call("write", key, lambda: self._put(key, data, mode))
        except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):
            return await self._own_write(key, data, lost)

    async def list(self, prefix: str = "", start_after: str | None = None) -> list[ObjectInfo]:
        """The objects whose key begins with the prefix and is greater than ``start_after``, sorted by key.

        The order is that of the UTF-8 bytes, as S3 has it. The prefix may end within a name.
        """
        try:
            return await self._call("list", prefix, lambda: self._list(prefix, start_after))
        except ObjectNotFoundError:
            return []

    def _list(self, prefix: str, start_after: str | None) -> builtins.list[ObjectInfo]:
        folder, _, name = prefix.rpartition("/")
        # The client takes whole folders only; within one, a key just below the prefix is where to begin.
        offset = max(start_after or "", prefix[:-1] if name else "", key=_order)
        place = (self._prefix + folder).rstrip("/") or None
        after = None if start_after is None else _order(start_after)
        found: builtins.list[ObjectInfo] = []
        for batch in obstore.list(self._client, place, offset=self._prefix + offset if offset else None):
            infos = [self._info(meta) for meta in batch if not self._is_temporary(meta["path"])]
            found += [i for i in infos if i.key.startswith(prefix) and (after is None or _order(i.key) > after)]
            last = infos[-1].key if infos else ""
            # S3 lists in order: beyond the prefix nothing matches any more. Folders list in none.
            if self._folder is None and not last.startswith(prefix) and _order(last) > _order(prefix):
                break
        return sorted(found, key=lambda info: _order(info.key))

    async def exists(self, key: str) -> bool:
        """Whether an object exists."""
        try:
            await self._head(key)
        except ObjectNotFoundError:
            if self._folder is not None:
                return False
        else:
            return True
        try:  # the answer to a HEAD has no body to tell a missing bucket from a missing key
            await self.get(key)
        except ObjectNotFoundError:
            return False
        return True

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; absent ones are fine."""
        if self._folder is not None:
            files = [self._folder / key for key in keys]
            await self._call("delete", "", lambda: delete_files(files))
        elif paths := [self._path(key) for key in keys]:
            await self._call("delete", "", lambda: obstore.delete(self._client, paths))

    def open_reader(self, key: str, info: ObjectInfo | None = None) -> BinaryIO:
        """A seekable file over an object, for use in a thread: it blocks. A change of the object while it is read is an error.

        Args:
            key: which object.
            info: the version to read, if it is known; a folder does not look at it.

        Raises:
            ObjectNotFoundError: it does not exist.
        """
        if self._folder is not None:
            try:
                return (self._folder / key).open("rb", buffering=1024 * 1024)
            except OSError as error:
                raise translate("read", self._name(key), error, 1) from None
        of = info or self._info(self._call_sync("read", key, lambda: obstore.head(self._client, self._path(key))))
        raw = RangeReader(of.size_bytes, lambda start, end: self.read_range(of, start, end))
        return cast("BinaryIO", io.BufferedReader(raw, _READ_BYTES))

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Bytes of one version of an object; blocks.

        Raises:
            ObjectChangedError: it has another version.
        """

        def ask() -> bytes:
            answer = obstore.get(
                self._client, self._path(info.key), options={"range": (start, end), "if_match": info.version}
            )
            return bytes(answer.bytes())

        return self._call_sync("read", info.key, ask)

    async def _head(self, key: str) -> ObjectInfo:
        return self._info(await self._call("look at", key, lambda: obstore.head(self._client, self._path(key))))

    def _put(self, key: str, data: bytes, mode: PutMode) -> ObjectInfo:
        if self._folder is not None:
            path = self._folder / self._checked(key)
            return ObjectInfo(key, len(data), write_file(path, data, new=mode == "create"))
        large = len(data) > _PART_BYTES
        if large and mode == "create":
            return self._create_in_parts(key, data)
        answer = obstore.put(
            self._client,
            self._path(key),
            data,
            mode=mode,
            use_multipart=large and mode == "overwrite",
            chunk_size=_PART_BYTES,
        )
        return ObjectInfo(key, len(data), answer[self._tag_name] or "")  # type: ignore[literal-required]

    def _create_in_parts(self, key: str, data: bytes) -> ObjectInfo:
        """The parts go to a name of their own; the store copies it to the key within itself, and refuses if that exists."""
        upload = self._path(layout.upload(uuid.uuid4().hex))
        try:
            obstore.put(self._client, upload, data, use_multipart=True, chunk_size=_PART_BYTES)
            obstore.copy(self._client, upload, self._path(key), overwrite=False)
        finally:
            with contextlib.suppress(BaseError):  # what stays here is removed at the end of the run
                obstore.delete(self._client, upload)
        return self._info(obstore.head(self._client, self._path(key)))

    async def _own_write(self, key: str, data: bytes, lost: StoreError) -> ObjectInfo:
        """A refused conditional write is ours when the object holds our bytes: the store had taken an earlier send of it."""
        try:
            found, info = await self.get_with_info(key)
        except ObjectNotFoundError:
            raise lost from None
        if found != data:
            raise lost
        return info

    def _checked(self, key: str) -> str:
        if any(part in {"", ".", ".."} for part in key.split("/")):
            raise ValueError(f"{key!r} holds an empty name, '.' or '..'")
        return key

    def _is_temporary(self, path: str) -> bool:
        return self._folder is not None and is_temporary(path)

    def _if_match(self, version: str) -> PutMode:
        return {"version": version} if self._tag_name == "version" else {"e_tag": version}

    def _path(self, key: str) -> str:
        return self._prefix + key

    def _name(self, key: str) -> str:
        return f"{self.uri}/{key}" if key else self.uri

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        return ObjectInfo(meta["path"].removeprefix(self._prefix), meta["size"], meta[self._tag_name] or "")  # type: ignore[literal-required]

    async def _call(self, verb: str, key: str, ask: Callable[[], T]) -> T:
        async def once() -> T:  # tenacity awaits only what it sees to be a coroutine function
            return await asyncio.get_running_loop().run_in_executor(_threads(), ask)

        try:
            return await AsyncRetrying(sleep=asyncio.sleep, **self._retry_policy())(once)
        except FOREIGN_ERRORS as error:
            raise translate(verb, self._name(key), error, self._attempts) from None

    def _call_sync(self, verb: str, key: str, ask: Callable[[], T]) -> T:
        try:
            return Retrying(**self._retry_policy())(ask)
        except FOREIGN_ERRORS as error:
            raise translate(verb, self._name(key), error, self._attempts) from None

    def _retry_policy(self) -> dict[str, Any]:
        return {
            "stop": stop_after_attempt(self._attempts),
            "wait": wait_random_exponential(multiplier=0.5, max=20),
            "retry": retry_if_exception(is_undecided),
            "before_sleep": self._tell,
            "reraise": True,
        }

    def _tell(self, state: RetryCallState) -> None:
        """A few tries are the store's daily life; more than that, somebody waiting for the job wants to know."""
        if state.attempt_number >= _TELL_FROM_ATTEMPT:
            _log.warning("%s does not answer (try %d of %d)", self.uri, state.attempt_number, self._attempts)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Where the client waits, so that the loop does not.

    The client's own coroutines are not used: one that is let go of while the interpreter ends aborts the process, and a job that is done
    would seem to have crashed (PyO3/pyo3-async-runtimes, issue 40; seen at 1 exit in 5, and at none with threads).
    """
    return ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="object-store")


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
