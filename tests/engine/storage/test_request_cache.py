"""The cache across attempts, with and without damage."""

import asyncio
import subprocess
import sys

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import FencedError, RequestCacheError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.request_cache import RequestCache


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(str(tmp_path / "state"))


async def claim(store):
    attempt = await Attempt.claim(store, rank=0, job_id="a")
    await attempt.beat(msgspec.structs.replace(attempt.record, state="failed"))
    return attempt


def keep_all(_value):
    return True


async def test_flushed_rows_are_found_by_the_next_attempt(store):
    """The store is the truth; scratch is not."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        cache.put(0, 1, b"key", b"value")
        cache.put_document(0, 7, "doc", b"document")
        await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([], keep_all)
        assert cache.get(b"key") == b"value"
        assert cache.get(b"other") is None
        assert cache.restored_documents == {(0, 7): "doc"}
        assert await cache.document_rows(0) == [b"document"]


async def test_documents_come_back_in_input_order(store):
    """Completion order does not matter."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        for number in (5, 1, 3, 2, 4):
            cache.put_document(0, number, f"d{number}", str(number).encode())
        assert await cache.document_rows(0) == [b"1", b"2", b"3", b"4", b"5"]


async def test_rows_become_durable_without_being_asked_to(store):
    """The flush interval bounds what a kill can cost."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        keeping = asyncio.create_task(cache.keep_durable())
        cache.put(0, 1, b"key", b"value")
        async with asyncio.timeout(10):
            while not await store.list(layout.cache(0)):
                await asyncio.sleep(0.05)
        keeping.cancel()


async def test_a_full_segment_does_not_wait_for_the_interval(store):
    """A thousand rows are flushed at once."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        keeping = asyncio.create_task(cache.keep_durable())
        for number in range(1000):
            cache.put(0, number, str(number).encode(), b"value")
        async with asyncio.timeout(1.5):
            while not await store.list(layout.cache(0)):
                await asyncio.sleep(0.02)
        keeping.cancel()


async def test_requests_of_a_document_that_ended_well_are_not_written(store):
    """Whoever resumes finds the document; one with failures may be asked again, and then its good calls are replayed."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        for number in range(3):
            cache.put(0, number, f"key {number}".encode(), b"value")
        cache.put_document(0, 0, "settled", b"document")
        cache.put_document(0, 1, "with a failure", b"document", is_settled=False)
        await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([], keep_all)
        assert [cache.get(f"key {number}".encode()) for number in range(3)] == [None, b"value", b"value"]


async def test_segments_go_when_all_their_chunks_are_committed(store):
    """State does not outgrow the open chunks."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        cache.put(0, 1, b"a", b"1")
        cache.put(1, 2, b"b", b"2")
        await cache.flush()
        await cache.forget(0)
        assert len(await store.list(layout.cache(0))) == 1
        await cache.forget(1)
        assert await store.list(layout.cache(0)) == []


async def test_segments_of_done_chunks_are_deleted_on_restore(store):
    """An attempt that died between commit and deletion leaves nothing for ever."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        cache.put(0, 1, b"a", b"1")
        await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([0], keep_all)
        assert cache.get(b"a") is None
    assert await store.list(layout.cache(0)) == []


@pytest.mark.parametrize("damage", [b"", b"not a segment", None])
async def test_a_damaged_segment_is_skipped_and_the_others_are_used(store, damage):
    """One bad object costs its own requests and no more."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        cache.put(0, 1, b"a", b"1")
        await cache.flush()
        cache.put(0, 2, b"b", b"2")
        await cache.flush()
    key = (await store.list(layout.cache(0)))[0].key
    await store.put(key, (await store.get(key))[:-3] if damage is None else damage)
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([], keep_all)
        assert (cache.get(b"a"), cache.get(b"b")) == (None, b"2")


async def test_documents_that_are_to_be_asked_again_are_not_kept(store):
    """The caller decides by the value."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        cache.put_document(0, 0, "good", b"good")
        cache.put_document(0, 1, "bad", b"bad")
        await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([], lambda value: value == b"good")
        assert list(cache.restored_documents.values()) == ["good"]
        assert await cache.document_rows(0) == [b"good"]


async def test_of_what_was_written_twice_the_later_counts(store):
    """Over more segments than are loaded beside each other, within one attempt and across two."""
    for attempt in ("first", "second"):
        async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
            for number in range(40):
                cache.put(0, number, b"key", f"{attempt} {number}".encode())
                cache.put_document(0, 1000, "doc", f"{attempt} {number}".encode(), is_settled=False)
                await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        await cache.restore([], keep_all)
        assert cache.get(b"key") == b"second 39"
        assert await cache.document_rows(0) == [b"second 39"]


async def test_a_scratch_folder_that_cannot_be_used_is_named(store, tmp_path):
    """The error says which folder, and what to do."""
    with pytest.raises(RequestCacheError, match=r"missing cannot be used.*TMPDIR"):
        async with RequestCache.open(store, await claim(store), fingerprint="f", scratch=str(tmp_path / "missing")):
            raise AssertionError("opened")


FILL_DISK = """
import asyncio, resource, sys
from airflow_provider_rollout.engine.exceptions import RequestCacheError
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.request_cache import RequestCache
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
async def main():
    store = ObjectStore.open(sys.argv[1])
    attempt = await Attempt.claim(store, rank=0, job_id="a")
    async with RequestCache.open(store, attempt, fingerprint="f", scratch=sys.argv[2]) as cache:
        for number in range(4000):
            cache.put_document(0, number, str(number), b"x" * 1000)
        await cache.document_rows(0)
try:
    asyncio.run(main())
except RequestCacheError as error:
    print(error)
    sys.exit(7)
"""


async def test_a_full_disk_is_an_error_that_says_so(tmp_path):
    """Nothing is lost in silence."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FILL_DISK, str(tmp_path / "state"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "free space there" in done.stdout


async def test_a_fenced_attempt_deletes_no_segment_of_its_successor(store):
    """Which to the one that slept is foreign, and to the one that works is the truth."""
    slept = await claim(store)
    awake = await claim(store)
    async with RequestCache.open(store, awake, fingerprint="new") as cache:
        cache.put_document(0, 7, "doc", b"document")
        await cache.flush()
    async with RequestCache.open(store, slept, fingerprint="old") as cache:
        with pytest.raises(FencedError):
            await cache.restore([], keep_all)
    assert len(await store.list(layout.cache(0))) == 1


async def test_scratch_that_breaks_while_it_is_read_is_the_jobs_failure(store, tmp_path):
    """An InferenceError or a plain exception would be recorded as the document's."""
    async with RequestCache.open(store, await claim(store), fingerprint="f") as cache:
        for number in range(2000):
            cache.put(0, 1, f"key {number}".encode(), b"value" * 100)
        await cache.flush()
    async with RequestCache.open(store, await claim(store), fingerprint="f", scratch=str(tmp_path)) as cache:
        await cache.restore([], keep_all)
        for file in tmp_path.glob("rollout-*/*"):
            file.write_bytes(b"\xff" * file.stat().st_size)
        keys = [f"key {number}".encode() for number in range(2000)]
        with pytest.raises(RequestCacheError, match="cannot be used"):
            list(map(cache.get, keys))
