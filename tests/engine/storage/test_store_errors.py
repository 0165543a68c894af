"""What a store can do wrong: what is outlived, what is told, and as which error."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from servers.faulty_s3 import Fault, FaultyS3
from servers.seaweedfs import S3Server

from airflow_provider_rollout.engine.exceptions import (
    ObjectChangedError,
    ObjectExistsError,
    StoreError,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions


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
@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ("POST .*uploads", "status"),
        ("PUT .*partNumber=2", "lost answer"),
        ("POST .*_uploads.*uploadId", "error in 200"),
        ("POST .*big.uploads", "lost answer"),
        ("PUT .*big.*partNumber", "drop"),
        ("POST .*big.uploadId", "status"),
        ("POST .*big.uploadId", "lost answer"),
        ("POST .*big.uploadId", "error in 200"),
        (r"POST \S*\?delete", "status"),
    ],
)
async def test_a_large_create_in_parts_is_whole_or_not_there(
    faulty_s3: FaultyS3, s3: S3Server, request_: str, kind: str
) -> None:
    """Its parts, the copy to its key and the removal of the upload: whatever fails once, the object is there and nothing else."""
    store = await _through(faulty_s3, s3, Fault(request_, kind, code="InternalError"))  # type: ignore[arg-type]
    data = os.urandom(1024) * (20 * 1024)
    written = await store.create("big", data)
    assert faulty_s3.faults[0].times == 0
    assert await store.get_with_info("big") == (data, written)
    assert [info.key for info in await store.list()] == ["big", "there"]


@pytest.mark.s3
async def test_a_large_create_sends_no_request_above_one_part_and_has_one_winner(
    faulty_s3: FaultyS3, s3: S3Server
) -> None:
    """Two at once with different bytes: one is told that the other has won."""
    store = await _through(faulty_s3, s3)
    sent = [os.urandom(1024) * (20 * 1024) for _ in range(2)]
    answers = await asyncio.gather(*(store.create("big", data) for data in sent), return_exceptions=True)
    (winner,) = [number for number, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert isinstance(answers[1 - winner], ObjectExistsError)
    assert await store.get("big") == sent[winner]
    puts = [request for request in faulty_s3.seen if request.startswith("PUT")]
    assert puts
    assert all("partNumber=" in request for request in puts)
    assert [info.key for info in await store.list()] == ["big", "there"]


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
