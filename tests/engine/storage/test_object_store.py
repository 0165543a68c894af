"""The object store: atomic and conditional writes, odd keys, and what a store can do wrong."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from servers.faulty_s3 import Fault, FaultyS3, run_token_service
from servers.seaweedfs import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server

from airflow_provider_rollout.engine.exceptions import (
    ConfigError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.store_options import build_client

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


def test_opening_sends_nothing() -> None:
    """A store that cannot be reached is opened all the same: nothing is asked before it must be."""
    options = StoreOptions(access_key_id="a", secret_access_key="b", endpoint_url="http://192.0.2.1")
    before = time.perf_counter()
    ObjectStore.open("s3://bucket/prefix", options)
    ObjectStore.open("s3://bucket/prefix", StoreOptions(role_arn="arn:aws:iam::1:role/r", endpoint_url="http://192.0.2.1"))
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


def test_options_survive_the_environment_and_hide_their_secrets() -> None:
    """A child process gets what its parent had; a log gets no key."""
    options = StoreOptions(access_key_id="AK", secret_access_key="hush", session_token="hush2", external_id="hush3", verify=False)
    assert "hush" not in repr(options)
    assert "AK" not in repr(options)
    assert StoreOptions().to_environment() == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLOUT_STORE_OPTIONS", options.to_environment()["ROLLOUT_STORE_OPTIONS"])
        assert StoreOptions.from_environment() == options
        for text in ("{", "[]", '{"secret": "hush"}', '{"region": 5, "access_key_id": "hush"}'):
            patch.setenv("ROLLOUT_STORE_OPTIONS", text)
            with pytest.raises(ConfigError, match="ROLLOUT_STORE_OPTIONS") as caught:
                StoreOptions.from_environment()
            assert "hush" not in str(caught.value)


def test_a_missing_certificate_bundle_is_named() -> None:
    """It is read where the store is opened, and only for https."""
    with pytest.raises(ConfigError, match="/no/such/bundle"):
        ObjectStore.open("s3://bucket", StoreOptions(verify="/no/such/bundle"))
    ObjectStore.open("s3://bucket", StoreOptions(verify="/no/such/bundle", endpoint_url="http://127.0.0.1:1"))


# Folders


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
    assert os.listdir(tmp_path) == ["key"]


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

    for delay_s in (0.0, 0.011, 0.023, 0.037):
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


# S3


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


def _operations(store: ObjectStore) -> dict[str, object]:
    return {
        "get": store.get("k"),
        "put": store.put("k", b""),
        "create": store.create("k", b""),
        "replace": store.replace("k", b"", '"1"'),
        "list": store.list(),
        "exists": store.exists("k"),
        "delete": store.delete(["k"]),
        "open_reader": asyncio.to_thread(store.open_reader, "k"),
    }


@pytest.mark.s3
@pytest.mark.parametrize("operation", ["get", "put", "create", "replace", "list", "exists", "delete"])
async def test_a_missing_bucket_is_never_a_missing_key(s3: S3Server, operation: str) -> None:
    """Absent is not unreadable, and no time is lost with retries."""
    operations = _operations(ObjectStore.open("s3://no-such-bucket/x", s3.options()))
    before = time.perf_counter()
    try:
        with pytest.raises(StoreError, match="the bucket does not exist; create it") as caught:
            await operations.pop(operation)  # type: ignore[misc]
    finally:
        for other in operations.values():
            other.close()  # type: ignore[attr-defined]
    assert type(caught.value) is StoreError
    assert time.perf_counter() - before < 2


@pytest.mark.s3
@pytest.mark.parametrize("operation", ["get", "put", "create", "replace", "list", "exists", "delete", "open_reader"])
async def test_refused_credentials_are_named_without_the_secret(s3: S3Server, operation: str) -> None:
    """A wrong secret is told at once, for each kind of request."""
    options = s3.options(secret_access_key="wrong-secret")
    operations = _operations(ObjectStore.open(f"s3://{s3.new_bucket()}/x", options))
    before = time.perf_counter()
    try:
        with pytest.raises(StoreError, match="access denied; check the credentials") as caught:
            await operations.pop(operation)  # type: ignore[misc]
    finally:
        for other in operations.values():
            other.close()  # type: ignore[attr-defined]
    assert "wrong-secret" not in str(caught.value)
    assert time.perf_counter() - before < 2


async def test_an_unreachable_store_says_how_often_it_was_asked() -> None:
    """The attempts are bounded, and the error names the key."""
    options = StoreOptions(access_key_id="a", secret_access_key="b", endpoint_url="http://127.0.0.1:9", max_attempts=2)
    with pytest.raises(StoreError, match=r"cannot read s3://bucket/p/k after 2 attempts: .*127\.0\.0\.1:9"):
        await ObjectStore.open("s3://bucket/p", options).get("k")


async def _through(proxy: FaultyS3, s3: S3Server, *faults: Fault, **options: object) -> ObjectStore:
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", s3.options(endpoint_url=proxy.endpoint_url, **options))
    await store.put("there", b"before")
    proxy.seen.clear()
    proxy.faults[:] = faults
    return store


@pytest.mark.s3
@pytest.mark.parametrize(("fault", "status"), [("status", 500), ("status", 503), ("drop", 0), ("lost answer", 0)])
async def test_every_request_outlives_a_struggling_store(
    faulty_s3: FaultyS3, s3: S3Server, fault: str, status: int
) -> None:
    """SlowDown, errors, broken connections and lost answers, on each kind of request, cost time only."""
    store = await _through(faulty_s3, s3)
    version = (await store.get_with_info("there"))[1].version
    steps = [
        store.put("a", b"1"),
        store.create("b", b"2"),
        store.replace("there", b"after", version),
        store.get("there"),
        store.list(),
        store.exists("b"),
        store.delete(["a"]),
    ]
    for step in steps:
        faulty_s3.faults[:] = [Fault(".", fault, status=status)]  # type: ignore[arg-type]
        await step
    faulty_s3.faults.clear()
    assert await store.get("there") == b"after"
    assert [info.key for info in await store.list()] == ["b", "there"]


@pytest.mark.s3
async def test_three_refusals_in_a_row_are_outlived(faulty_s3: FaultyS3, s3: S3Server) -> None:
    """More than the client's own retries: the store's retries sign anew."""
    store = await _through(faulty_s3, s3, Fault("PUT", "status", times=5))
    await store.create("k", b"x")
    assert sum(request.startswith("PUT") for request in faulty_s3.seen) == 6


@pytest.mark.s3
@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ("PUT .*partNumber", "status"),
        ("PUT .*partNumber", "lost answer"),
        ("POST .*uploads", "status"),
        ("POST .*uploadId", "status"),
        ("POST .*uploadId", "lost answer"),
        ("POST .*uploadId", "error in 200"),
    ],
)
async def test_a_multipart_upload_is_whole_or_not_there(
    faulty_s3: FaultyS3, s3: S3Server, request_: str, kind: str
) -> None:
    """Also when its completion is answered 200 with an error in the body."""
    store = await _through(faulty_s3, s3, Fault(request_, kind, code="InternalError"))  # type: ignore[arg-type]
    data = os.urandom(1024) * (20 * 1024)
    await store.put("big", data)
    assert faulty_s3.faults[0].times == 0
    assert await store.get("big") == data


@pytest.mark.s3
async def test_a_request_that_hangs_is_given_up_and_made_again(faulty_s3: FaultyS3, s3: S3Server) -> None:
    """A write whose server is silent is sent again after the timeout."""
    store = await _through(faulty_s3, s3, Fault("PUT", "hang"), request_timeout_s=0.5)
    await store.create("k", b"x")
    assert await store.get("k") == b"x"


@pytest.mark.s3
async def test_expired_credentials_are_asked_for_again(faulty_s3: FaultyS3, s3: S3Server) -> None:
    """S3 says 400 ExpiredToken; the next attempt is signed with what is valid then."""
    store = await _through(faulty_s3, s3, Fault("PUT", "status", status=400, code="ExpiredToken"))
    await store.put("k", b"x")
    assert await store.get("k") == b"x"


@pytest.mark.s3
async def test_a_conflict_and_a_missing_object_both_mean_changed(faulty_s3: FaultyS3, s3: S3Server) -> None:
    """AWS answers 409, 412 or 404 where somebody else was faster."""
    store = await _through(faulty_s3, s3)
    for status, code in ((409, "ConditionalRequestConflict"), (412, "PreconditionFailed"), (404, "NoSuchKey")):
        faulty_s3.faults[:] = [Fault("PUT", "status", times=30, status=status, code=code)]
        with pytest.raises(ObjectChangedError):
            await store.replace("there", b"new", '"1"')


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


ROLE = StoreOptions(
    access_key_id="user",
    secret_access_key="user-secret",
    region="us-east-1",
    endpoint_url="http://127.0.0.1:9",
    role_arn="arn:aws:iam::123456789012:role/batch",
    role_session_name="nightly",
    external_id="ext",
    assume_role_kwargs={"DurationSeconds": 900},
    max_attempts=1,
)


@pytest.mark.s3
async def test_requests_are_signed_with_the_role(
    faulty_s3: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role is assumed once, with its arguments, and its token goes with each request."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/no/such/bundle")  # plain HTTP needs none
    with run_token_service(ACCESS_KEY_ID, SECRET_ACCESS_KEY, life_s=3600) as (sts_url, asked):
        options = replace(ROLE, endpoint_url=faulty_s3.endpoint_url, sts_endpoint_url=sts_url)
        store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", options)
        for number in range(3):
            with pytest.raises(StoreError, match="access denied"):  # the test's server takes no session tokens
                await store.put(f"k{number}", b"x")
    assert faulty_s3.tokens == ["token-1"] * 3
    assert len(asked) == 1
    names = ("RoleArn", "RoleSessionName", "ExternalId", "DurationSeconds")
    assert [asked[0][name] for name in names] == ["arn:aws:iam::123456789012:role/batch", "nightly", "ext", "900"]


@pytest.mark.parametrize(("life_s", "calls"), [(3600, 1), (120, 3)])
def test_credentials_of_a_role_are_renewed_before_they_end(life_s: float, calls: int) -> None:
    """botocore renews what has less than ten minutes left; the client never keeps them for longer than that."""
    with run_token_service("key", "secret", life_s=life_s) as (sts_url, asked):
        provider = build_client("s3", "bucket", replace(ROLE, sts_endpoint_url=sts_url)).credential_provider
        for _ in range(3):
            credential = provider()
        assert credential["token"] == f"token-{calls}"
        assert credential["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)
        assert len(asked) == calls


async def test_a_role_that_cannot_be_assumed_is_named() -> None:
    """The error names the role and no secret."""
    options = replace(ROLE, sts_endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StoreError, match="role arn:aws:iam::123456789012:role/batch cannot be assumed") as caught:
        await ObjectStore.open("s3://bucket", options).get("k")
    assert "user-secret" not in str(caught.value)
