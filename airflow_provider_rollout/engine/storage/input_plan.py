"""Which shards a run reads, and which rank reads which part of them; pinned once, compared on every resume.

Receives: files, globs and folders, local or remote.        Hands on: InputPlan.
Invariants: a plan is a function of what the sources hold: shards are sorted by URI, each once. Part i belongs to rank
``i % world_size``. With fewer shards than ranks, plain JSONL is split by bytes and Parquet by rows, in proportion to
size; a split shard's parts cover it without overlap. No source is passed over: one that names nothing is an error.
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

import msgspec

from airflow_provider_rollout.engine.exceptions import ShardError
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions

__all__ = [
    "InputPlan",
    "Part",
    "Shard",
    "ShardFormat",
    "changed_shards",
    "make_plan",
    "open_shard_store",
    "shard_format",
]

_SUFFIXES: dict[str, Literal["jsonl", "csv", "tsv", "parquet"]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_WILDCARDS = frozenset("*?[")
_MAX_NAMED = 5  # shards named in one message


class Shard(msgspec.Struct, frozen=True):
    """One input object.

    Attributes:
        uri: absolute path or URI.
        size_bytes: its length.
        version: ETag, or the modification time of a local file.
    """

    uri: str
    size_bytes: int
    version: str


class Part(msgspec.Struct, frozen=True):
    """A stretch of a shard, or all of it.

    Attributes:
        shard_index: which shard of the plan.
        start: first byte (plain JSONL) or row (Parquet); 0 otherwise.
        end: one past the last; None is the shard's end.
    """

    shard_index: int
    start: int = 0
    end: int | None = None


class InputPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run reads. Its JSON form is stored with the state."""

    shards: list[Shard]
    world_size: int
    parts: list[Part]
    schema_version: int = 1

    def parts_of(self, rank: int) -> list[Part]:
        """The parts that a rank reads, in order."""
        return self.parts[rank :: self.world_size]

    def digest(self) -> str:
        """Changes with every change of a shard or of the split; SHA-256 as hex."""
        shards = [(shard.uri, shard.size_bytes, shard.version) for shard in self.shards]
        parts = [(part.shard_index, part.start, part.end) for part in self.parts]
        return hashlib.sha256(msgspec.json.encode((shards, parts, self.world_size))).hexdigest()


class ShardFormat(msgspec.Struct, frozen=True):
    """How a shard's bytes are to be read, by its name."""

    kind: Literal["jsonl", "csv", "tsv", "parquet"]
    compression: Literal["gzip", "zstd"] | None = None


def shard_format(uri: str) -> ShardFormat | None:
    """The format that a name tells, or None."""
    name = PurePosixPath(uri.lower())
    compression = _COMPRESSIONS.get(name.suffix)
    suffix = PurePosixPath(name.stem).suffix if compression else name.suffix
    kind = _SUFFIXES.get(suffix)
    if kind is None or (kind == "parquet" and compression):
        return None
    return ShardFormat(kind, compression)


def open_shard_store(uri: str, options: StoreOptions | None) -> tuple[ObjectStore, str]:
    """The store that holds a shard, and the shard's key in it."""
    scheme, separator, rest = uri.partition("://")
    if separator:
        bucket, _, key = rest.partition("/")
        return ObjectStore.open(f"{scheme}://{bucket}", options, make_folder=False), key
    folder, name = os.path.split(uri)
    return ObjectStore.open(folder, options, make_folder=False), name


async def make_plan(sources: Sequence[str], world_size: int, options: StoreOptions | None = None) -> InputPlan:
    """List the shards and split them over the ranks.

    A source is a file, a folder (all data files below it, without names that begin with ``_`` or ``.``) or a glob: ``*`` and ``?``
    stay within a name, ``**`` is any number of folders, a leading wildcard matches no leading ``_`` or ``.``. A name that exists
    as it is written is never taken for a glob.

    Raises:
        ShardError: a source names nothing, or something that is not JSONL, Parquet or CSV.
        StoreError: a store cannot be reached.
    """
    found: dict[str, Shard] = {}
    for source in sources:
        shards = await _expand(source, options)
        if not shards:
            raise ShardError(
                f"{source}: no such file, and no data files there; data are .jsonl, .ndjson, .csv, .tsv, .parquet"
            )
        found.update((shard.uri, shard) for shard in shards)
    ordered = sorted(found.values(), key=lambda shard: shard.uri)
    for shard in ordered:
        if shard_format(shard.uri) is None:
            raise ShardError(
                f"{shard.uri}: unknown format; name it .jsonl, .ndjson, .csv or .tsv (all also with .gz or .zst) or .parquet"
            )
    units = {}
    if len(ordered) < world_size:
        units = {index: await asyncio.to_thread(_units, shard, options) for index, shard in enumerate(ordered)}
    return InputPlan(
        ordered, world_size, _split(len(ordered), world_size, units, [shard.size_bytes for shard in ordered])
    )


def changed_shards(pinned: InputPlan, now: InputPlan) -> list[str]:
    """What differs between the shards of two plans, a sentence for each; pure."""
    before = {shard.uri: shard for shard in pinned.shards}
    after = {shard.uri: shard for shard in now.shards}
    sentences = [f"{uri} is gone" for uri in before if uri not in after]
    sentences += [f"{uri} is new" for uri in after if uri not in before]
    for uri in before.keys() & after.keys():
        old, new = before[uri], after[uri]
        if old.size_bytes != new.size_bytes:
            sentences.append(f"{uri} has changed from {old.size_bytes} to {new.size_bytes} bytes")
        elif old.version != new.version:
            sentences.append(f"{uri} has been written again since the plan was made")
    return sorted(sentences)


def _split(count: int, world_size: int, units: dict[int, int], sizes: Sequence[int]) -> list[Part]:
    """Cut the shards into parts.

    Args:
        count: how many shards there are.
        world_size: how many ranks.
        units: of the shards, when there are fewer than ranks: bytes or rows by which it can be cut, 0 for not at all.
        sizes: of the shards, in bytes.
    """
    pieces = [1] * count
    can_grow = [index for index in range(count) if units.get(index, 0) > 1]
    for _ in range(world_size - count):
        # The shard whose pieces are the largest gets one more; the first of equals.
        growing = [index for index in can_grow if pieces[index] < units[index]]
        if not growing:
            break
        pieces[max(growing, key=lambda index: (sizes[index] / pieces[index], -index))] += 1
    parts: list[Part] = []
    for index, number in enumerate(pieces):
        if number == 1:
            parts.append(Part(index))
            continue
        edges = [units[index] * piece // number for piece in range(number + 1)]
        parts.extend(Part(index, start, end) for start, end in pairwise(edges))
    return parts


def _units(shard: Shard, options: StoreOptions | None) -> int:
    kind = shard_format(shard.uri)
    if kind == ShardFormat("jsonl"):
        return shard.size_bytes
    if kind != ShardFormat("parquet") or shard.size_bytes == 0:
        return 0
    import pyarrow as pa  # noqa: PLC0415 - only a plan that splits Parquet needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    store, key = open_shard_store(shard.uri, options)
    try:
        with store.open_reader(key) as file:
            return int(pq.read_metadata(file).num_rows)
    except pa.ArrowException as error:
        raise ShardError(f"{shard.uri} is not a whole Parquet file: {error}") from None


async def _expand(source: str, options: StoreOptions | None) -> list[Shard]:
    scheme, separator, _ = source.partition("://")
    if separator and scheme != "file":
        return await _expand_remote(source.replace("s3a://", "s3://", 1), options)
    path = unquote(urlsplit(source).path) if separator else source
    try:
        return await asyncio.to_thread(_expand_local, path)
    except OSError as error:
        raise ShardError(f"{source} cannot be read: {error.strerror}") from None


def _expand_local(source: str) -> list[Shard]:
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        files = [Path(folder, name) for folder, name in _walk(path)]
        return [_local_shard(file) for file in files if shard_format(file.name)]
    if path.exists():
        return [_local_shard(path)]
    if _WILDCARDS.isdisjoint(str(path)):
        return []
    patterns = path.parts
    matches = (Path(name) for name in glob.iglob(str(path), recursive=True))  # noqa: PTH207 - pathlib's follows no links
    return [_local_shard(match) for match in matches if match.is_file() and _matches(match.parts, patterns)]


def _walk(path: Path) -> Iterable[tuple[str, str]]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, onerror=fail, followlinks=True):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from ((folder, name) for name in names if not _is_hidden(name))


def _local_shard(path: Path) -> Shard:
    status = path.stat()
    return Shard(str(path), status.st_size, str(status.st_mtime_ns))


async def _expand_remote(source: str, options: StoreOptions | None) -> list[Shard]:
    store, key = open_shard_store(source, options)
    root = store.uri
    folder = f"{key.rstrip('/')}/" if key else ""
    if key and not key.endswith("/") and await store.exists(key):
        infos = [info for info in await store.list(key) if info.key == key]
        return [Shard(f"{root}/{info.key}", info.size_bytes, info.version) for info in infos]
    infos = await store.list(folder)
    if infos:
        inside = [info for info in infos if not any(map(_is_hidden, info.key.removeprefix(folder).split("/")))]
        infos = [info for info in inside if shard_format(info.key)]
    elif not _WILDCARDS.isdisjoint(key):
        fixed = key[: min(key.index(mark) for mark in _WILDCARDS if mark in key)]
        patterns = tuple(key.split("/"))
        infos = [info for info in await store.list(fixed) if _matches(tuple(info.key.split("/")), patterns)]
        # A "folder" that a console has made is an empty object.
        infos = [info for info in infos if info.size_bytes or shard_format(info.key)]
    return [Shard(f"{root}/{info.key}", info.size_bytes, info.version) for info in infos]


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _matches(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    """Whether a path matches a glob, both in segments."""
    if not patterns:
        return not names
    head, rest = patterns[0], patterns[1:]
    if head == "**":
        deeper = bool(names) and not _is_hidden(names[0]) and _matches(names[1:], patterns)
        return deeper or _matches(names, rest)
    if not names or (head[:1] in _WILDCARDS and _is_hidden(names[0])):
        return False
    return fnmatchcase(names[0], head) and _matches(names[1:], rest)
