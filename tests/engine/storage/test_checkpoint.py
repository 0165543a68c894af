"""Commit records, and what an attempt leaves when it dies between two writes."""

import itertools

import msgspec
import pytest

from airflow_provider_rollout.engine.document import Position
from airflow_provider_rollout.engine.exceptions import CheckpointError, FencedError, ManifestError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import Checkpoint, ChunkCounts, FinishedChunk, clear_rank
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

SIZE = 5


@pytest.fixture
def stores(tmp_path):
    return ObjectStore.open(str(tmp_path / "state")), ObjectStore.open(str(tmp_path / "out"))


async def claim(store):
    attempt = await Attempt.claim(store, rank=0, job_id="a")
    await attempt.beat(msgspec.structs.replace(attempt.record, state="failed"))
    return attempt


def finished(chunk_index, output=b"rows", documents=SIZE):
    return FinishedChunk(
        chunk_index=chunk_index,
        first_number=chunk_index * SIZE,
        end=Position(0, chunk_index * SIZE + documents),
        counts=ChunkCounts(
            documents=documents, written=documents, failed=0, dropped=0, rollouts_written=documents, rollouts_failed=0
        ),
        output=output,
        dead_letters=b"letters\n",
        failed_numbers=[],
        dropped={},
        retryable_numbers=[],
    )


async def test_a_committed_chunk_is_done_for_the_next_attempt(stores):
    """By its record alone."""
    store, outputs = stores
    checkpoint = await Checkpoint.load(store, 0, "f")
    record = await checkpoint.commit(await claim(store), outputs, finished(0), extension="jsonl")
    assert (await Checkpoint.load(store, 0, "f")).done == {0: record}
    assert await outputs.get("00000_chunk_00000.jsonl") == b"rows"


@pytest.mark.parametrize("done", [{0}, {0, 1}, {1}, {0, 2}, {0, 1, 2}])
async def test_done_chunks_are_jumped_over_where_they_stand(stores, done):
    """Also those behind an open one."""
    store, outputs = stores
    checkpoint, attempt = await Checkpoint.load(store, 0, "f"), await claim(store)
    for index in done:
        await checkpoint.commit(attempt, outputs, finished(index), extension="jsonl")
    for index in range(4):
        first_open = next(number for number in itertools.count(index) if number not in done)
        expected = first_open * SIZE
        assert checkpoint.next_gap(index * SIZE, Position(0, index * SIZE)) == (expected, Position(0, expected))


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_what_a_dead_attempt_left_of_a_chunk_is_replaced(stores, left):
    """After each of the three writes but the last."""
    store, outputs = stores
    if left >= 1:
        await store.create(layout.dead_letters(0, 0), b"theirs")
    if left >= 2:
        await outputs.create(layout.output(0, 0, "jsonl"), b"theirs")
    checkpoint = await Checkpoint.load(store, 0, "f")
    await checkpoint.commit(await claim(store), outputs, finished(0, b"ours"), extension="jsonl")
    assert await outputs.get("00000_chunk_00000.jsonl") == b"ours"
    assert await store.get(layout.dead_letters(0, 0)) == b"letters\n"


async def test_a_fenced_attempt_commits_nothing(stores):
    """The successor's work stands."""
    store, outputs = stores
    old = await claim(store)
    await claim(store)
    with pytest.raises(FencedError):
        await (await Checkpoint.load(store, 0, "f")).commit(old, outputs, finished(0), extension="jsonl")
    assert await outputs.list() == []


async def test_what_a_dead_attempt_left_goes_when_there_is_nothing_to_write(stores):
    """A row that no record counts, or a dead letter of a document that succeeded, would be told to whoever reads the folder."""
    store, outputs = stores
    await store.create(layout.dead_letters(0, 0), b"theirs")
    await outputs.create(layout.output(0, 0, "jsonl"), b"theirs")
    chunk = msgspec.structs.replace(finished(0), output=None, dead_letters=None)
    record = await (await Checkpoint.load(store, 0, "f")).commit(await claim(store), outputs, chunk, extension="jsonl")
    assert (record.output_key, record.dead_letters_key, record.output_sha256) == (None, None, None)
    assert not await outputs.exists(layout.output(0, 0, "jsonl"))
    assert not await store.exists(layout.dead_letters(0, 0))


async def test_an_output_object_that_is_gone_or_cut_is_named(stores):
    """No manifest names what is not there."""
    store, outputs = stores
    checkpoint = await Checkpoint.load(store, 0, "f")
    await checkpoint.commit(await claim(store), outputs, finished(0, b"ours"), extension="jsonl")
    await checkpoint.check_outputs(outputs)
    await outputs.put(layout.output(0, 0, "jsonl"), b"our")
    with pytest.raises(ManifestError, match=r"00000_chunk_00000\.jsonl"):
        await checkpoint.check_outputs(outputs)


async def test_a_fenced_attempt_clears_nothing(stores):
    """It may have slept for hours since it was told to begin anew."""
    store, outputs = stores
    old = await claim(store)
    new = await claim(store)
    await (await Checkpoint.load(store, 0, "f")).commit(new, outputs, finished(0), extension="jsonl")
    await outputs.put(layout.SUCCESS, b"")
    before = [info.key for info in [*await store.list(), *await outputs.list()]]
    with pytest.raises(FencedError):
        await clear_rank(store, outputs, old)
    assert [info.key for info in [*await store.list(), *await outputs.list()]] == before


@pytest.mark.parametrize(("data", "message"), [(b'{"chunk', "not a commit record"), (None, "another configuration")])
async def test_a_record_that_cannot_be_trusted_is_an_error(stores, data, message):
    """Unreadable is not absent, and foreign is not ours."""
    store, outputs = stores
    await (await Checkpoint.load(store, 0, "theirs")).commit(
        await claim(store), outputs, finished(0), extension="jsonl"
    )
    if data is not None:
        await store.put(layout.chunk(0, 0), data)
    with pytest.raises(CheckpointError, match=message):
        await Checkpoint.load(store, 0, "ours")


async def test_clearing_takes_the_rank_and_leaves_the_others(stores):
    """Only its own chunks and outputs go."""
    store, outputs = stores
    attempt = await claim(store)
    await (await Checkpoint.load(store, 0, "f")).commit(attempt, outputs, finished(0), extension="jsonl")
    await outputs.put("00001_chunk_00000.jsonl", b"rank 1")
    await outputs.put(layout.SUCCESS, b"")
    await clear_rank(store, outputs, attempt)
    assert [info.key for info in await outputs.list()] == ["00001_chunk_00000.jsonl"]
    assert (await Checkpoint.load(store, 0, "other")).done == {}
