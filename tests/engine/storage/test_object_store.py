"""The object store: atomic and conditional writes, odd keys, listings and readers, in a folder and on S3."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from servers.seaweedfs import S3Server

from airflow_provider_rollout.engine.exceptions import (
    ConfigError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions

ODD_KEYS = [
    "a b+c[1]%20:é/x.json",
    "a%2Fb",
    "x#1?.json",
    "~t",
    "trailing ",
    "*star*",
    "{b}",
    "日本",
    "e\u0301",
    "^`|<>\"'&=;,@!$()",
    "_h/.hid",
    "\U0001f600",
    "\uffee",
    "u\u2028v\u0085w",
]


BIG = 20 * 1024 * 1024


@pytest.fixture
def store(store_uri: str) -> ObjectStore:
    """An empty store."""
    return ObjectStore.open(store_uri)


async def test_what_is_put_can_be_read(store: ObjectStore) -> None:
    """Bytes, size and version are the same from put, get and list."""
    written = await store.put("a/b.json", b"data")
    assert await store.get("a/b.json") == b"data"
    assert await store.get_with_info("a/b.json") == (b"data", written)
    assert await store.list() == [written]
    assert written.size_bytes == 4


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    """Zero bytes are not absence."""
    await store.put("empty", b"")
    assert await store.exists("empty")
    assert await store.get("empty") == b""


async def test_a_missing_key_is_not_found(store: ObjectStore) -> None:
    """Absence has its own error."""
    with pytest.raises(ObjectNotFoundError, match="nothing/here does not exist"):
        await store.get("nothing/here")
    assert not await store.exists("nothing/here")
    with pytest.raises(ObjectNotFoundError):
        await asyncio.to_thread(store.open_reader, "nothing/here")
    assert await store.list("nothing/") == []


async def test_odd_keys_round_trip(store: ObjectStore) -> None:
    """No character of a key is escaped, normalised or lost, and the order is that of UTF-8."""
    for key in ODD_KEYS:
        await store.create(key, key.encode())
    assert [info.key for info in await store.list()] == sorted(ODD_KEYS, key=str.encode)
    for key in ODD_KEYS:
        assert await store.get(key) == key.encode()
    await store.delete(ODD_KEYS)
    assert await store.list() == []


@pytest.mark.parametrize("key", ["../x", "a//b", "a/./b", "/a"])
async def test_a_key_cannot_leave_the_store(store: ObjectStore, key: str) -> None:
    """A path in a key is refused before anything is written."""
    with pytest.raises(StoreError, match="key is not valid"):
        await store.put(key, b"x")


async def test_listing_takes_a_prefix_and_a_start(store: ObjectStore) -> None:
    """A prefix may end within a name; the start itself is left out."""
    for key in ["0_chunk_0", "0_chunk_1", "0_chunk_10", "1_chunk_0", "0/x", "0_chunk_1x/deep", "zzz"]:
        await store.put(key, b"")
    assert [i.key for i in await store.list("0_chunk_")] == ["0_chunk_0", "0_chunk_1", "0_chunk_10", "0_chunk_1x/deep"]
    assert [i.key for i in await store.list("0_chunk_", start_after="0_chunk_1")] == ["0_chunk_10", "0_chunk_1x/deep"]
    assert [i.key for i in await store.list("0/")] == ["0/x"]
    assert [i.key for i in await store.list("zzz")] == ["zzz"]
    assert [i.key for i in await store.list(start_after="1")] == ["1_chunk_0", "zzz"]


async def test_a_listing_of_many_keys_is_whole(store: ObjectStore) -> None:
    """More than one page of S3."""
    keys = [f"many/{number:05d}" for number in range(1100)]
    for first in range(0, len(keys), 100):
        await asyncio.gather(*(store.put(key, b"") for key in keys[first : first + 100]))
    assert [info.key for info in await store.list("many/")] == keys
    assert len(await store.list("many/", start_after=keys[999])) == 100
    await store.delete(keys)
    assert await store.list() == []


async def test_create_has_one_winner(store: ObjectStore) -> None:
    """Six at once: one object, five refusals."""
    answers = await asyncio.gather(
        *(store.create("claim", b"%d" % number) for number in range(6)), return_exceptions=True
    )
    winners = [number for number, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert len(winners) == 1
    assert sum(isinstance(answer, ObjectExistsError) for answer in answers) == 5
    assert await store.get("claim") == b"%d" % winners[0]


async def test_creating_the_same_bytes_again_is_success(store: ObjectStore) -> None:
    """The answer to a write may have been lost: our own bytes are there, so it is done."""
    first = await store.create("key", b"mine")
    assert await store.create("key", b"mine") == first
    with pytest.raises(ObjectExistsError, match="somebody else"):
        await store.create("key", b"theirs")


async def test_replace_needs_the_version_that_was_read(store: ObjectStore) -> None:
    """A stale version, or an absent key, is refused and nothing is written."""
    first = await store.put("key", b"1")
    second = await store.replace("key", b"22", first.version)
    with pytest.raises(ObjectChangedError):
        await store.replace("key", b"333", first.version)
    assert await store.get_with_info("key") == (b"22", second)
    with pytest.raises(ObjectChangedError):
        await store.replace("absent", b"1", first.version)
    assert not await store.exists("absent")


async def test_a_large_object_is_whole(store: ObjectStore) -> None:
    """Above the size of one part, with put and with create, and read as a file."""
    data = os.urandom(1024) * (BIG // 1024)
    assert (await store.put("put", data)).size_bytes == BIG
    await store.create("create", data)
    for key in ("put", "create"):
        assert await store.get(key) == data

    def read() -> bytes:
        with store.open_reader("put") as file:
            file.seek(-10, os.SEEK_END)
            assert file.read() == data[-10:]
            file.seek(7)
            assert (file.read(5), file.tell()) == (data[7:12], 12)
            file.seek(0)
            return b"".join(iter(lambda: file.read(3_000_000), b""))

    assert await asyncio.to_thread(read) == data


async def test_deleting_what_is_absent_is_fine(store: ObjectStore) -> None:
    """Delete says what is to be, not what was."""
    await store.put("a", b"")
    await store.delete(["a", "b", "c/d"])
    await store.delete([])
    assert await store.list() == []


@pytest.mark.alone
async def test_the_event_loop_runs_on_during_a_write(store: ObjectStore) -> None:
    """No call of the store blocks the loop."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)

    ticking = asyncio.create_task(tick())
    for _ in range(3):
        await store.put("big", bytes(BIG))
    ticking.cancel()
    assert longest < 0.25


@pytest.mark.alone
def test_opening_sends_nothing() -> None:
    """A store that cannot be reached is opened all the same: nothing is asked before it must be."""
    options = StoreOptions(access_key_id="a", secret_access_key="b", endpoint_url="http://192.0.2.1")
    before = time.perf_counter()
    ObjectStore.open("s3://bucket/prefix", options)
    ObjectStore.open(
        "s3://bucket/prefix", StoreOptions(role_arn="arn:aws:iam::1:role/r", endpoint_url="http://192.0.2.1")
    )
    assert time.perf_counter() - before < 0.5


@pytest.mark.parametrize("uri", ["ftp://host/x", "s3://", "hdfs://x/y"])
def test_an_unknown_kind_of_uri_is_refused(uri: str) -> None:
    """The error names the URI and what is known."""
    with pytest.raises(ConfigError, match=uri):
        ObjectStore.open(uri)


def test_importing_the_store_does_not_import_boto3() -> None:
    """A job with static keys or a folder does not pay for it."""
    code = "import sys, airflow_provider_rollout.engine.storage.object_store; print([m for m in sys.modules if 'boto' in m])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


async def test_a_full_disk_is_named_and_leaves_the_old_object(tmp_path: Path) -> None:
    """The file size limit stands for a full disk: a write that fails half-way is not seen."""
    store = ObjectStore.open(str(tmp_path))
    await store.put("key", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        for write in (store.put("key", bytes(300_000)), store.create("new", bytes(300_000))):
            with pytest.raises(StoreError, match="the disk is full; free space"):
                await write
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await store.get("key") == b"old"
    assert [info.key for info in await store.list()] == ["key"]
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["key"]


WRITER = """
    import asyncio, sys
    from airflow_provider_rollout.engine.storage.object_store import ObjectStore
    async def main():
        store = ObjectStore.open(sys.argv[1])
        for number in range(1_000_000):
            await store.put("same", bytes([number % 256]) * 3_000_000)
            await store.create(f"new/{number:06d}", bytes([number % 256]) * 300_000)
            print(number, flush=True)
    asyncio.run(main())
"""


def test_a_killed_writer_leaves_no_torn_object(tmp_path: Path) -> None:
    """Killed at several instants: every object is whole, and what was acknowledged is there."""

    async def check(store: ObjectStore, acknowledged: int) -> None:
        infos = await store.list()
        for info in infos:
            data = await store.get(info.key)
            assert len(data) == (3_000_000 if info.key == "same" else 300_000)
            assert len(set(data)) == 1
        assert {f"new/{number:06d}" for number in range(acknowledged)} <= {info.key for info in infos}

    for delay_s in (0.0, 0.011, 0.023):
        folder = tmp_path / str(delay_s)
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout
        with writer.stdout:
            writer.stdout.readline()
            time.sleep(delay_s)
            writer.send_signal(signal.SIGKILL)
            acknowledged = 1 + len(writer.stdout.readlines())
        writer.wait()
        asyncio.run(check(ObjectStore.open(str(folder)), acknowledged))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        ObjectStore.open(str(tmp_path / "file" / "x"))


def test_a_relative_path_and_a_file_url_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing folder is made; a URL's escapes are undone."""
    monkeypatch.chdir(tmp_path)
    assert ObjectStore.open("out/a").uri == str(tmp_path / "out" / "a")
    assert ObjectStore.open(f"file://{tmp_path}/b%20c").uri == str(tmp_path / "b c")
    assert (tmp_path / "out" / "a").is_dir()
    with pytest.raises(ObjectNotFoundError, match="not/made does not exist"):
        ObjectStore.open("not/made", make_folder=False)
    assert not Path("not").exists()


@pytest.mark.s3
async def test_replace_has_one_winner_on_s3(s3: S3Server) -> None:
    """Six with the same version: one is written."""
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", s3.options())
    first = await store.put("state", b"0")
    answers = await asyncio.gather(
        *(store.replace("state", b"w%d" % number, first.version) for number in range(6)), return_exceptions=True
    )
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert sum(isinstance(answer, ObjectChangedError) for answer in answers) == 5


@pytest.mark.s3
async def test_an_object_that_changes_while_it_is_read_is_an_error(s3: S3Server) -> None:
    """A reader never joins two versions."""
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", s3.options())
    await store.put("k", bytes(20_000_000))

    def read() -> None:
        with store.open_reader("k") as file:
            file.read(10)
            asyncio.run(store.put("k", bytes(20_000_001)))
            file.read()

    with pytest.raises(ObjectChangedError):
        await asyncio.to_thread(read)
