"""Manifests add up or are not written."""

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import CheckpointError, ManifestError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.checkpoint import ChunkCounts, ChunkRecord
from airflow_provider_rollout.engine.storage.manifest import (
    finish_run,
    make_rank_manifest,
    read_rank_manifest,
    read_run_manifest,
    write_rank_manifest,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(str(tmp_path / "state"))


@pytest.fixture
def outputs(tmp_path):
    return ObjectStore.open(str(tmp_path / "out"))


def record(chunk_index, first_number, written=2, failed=1):
    return ChunkRecord(
        chunk_index=chunk_index,
        first_number=first_number,
        part_index=0,
        offset=0,
        counts=ChunkCounts(
            documents=3,
            written=written,
            failed=failed,
            dropped=0,
            rollouts_written=written,
            rollouts_failed=failed,
            causes={"Timeout": 1},
        ),
        output_key=f"chunk-{chunk_index}",
        output_bytes=10,
        output_sha256="",
        dead_letters_key=None,
        epoch=1,
        fingerprint="f",
    )


async def manifest(store, records, rank=0, documents_in=6):
    attempt = await Attempt.claim(store, rank=rank, job_id="a")
    attempt.record = msgspec.structs.replace(attempt.record, fingerprint="f")
    made = make_rank_manifest(
        records,
        documents_in=documents_in,
        trailing_bad_rows=1,
        attempt=attempt,
        world_size=2,
        output="out",
        requests_sent=5,
        cache_hits=1,
    )
    await write_rank_manifest(store, attempt, made)
    await attempt.beat(msgspec.structs.replace(attempt.record, state="succeeded"))
    return made


async def test_chunks_are_added_up_in_order(store):
    """Sums, causes, outputs."""
    made = await manifest(store, [record(1, 3), record(0, 0)])
    assert (made.documents_in, made.documents_written, made.documents_failed, made.bad_rows) == (6, 4, 2, 1)
    assert (made.outputs, made.top_causes, made.output_bytes) == (["chunk-0", "chunk-1"], {"Timeout": 2}, 20)
    assert await read_rank_manifest(store, 0) == made


@pytest.mark.parametrize(
    ("records", "documents_in"),
    [
        ([record(0, 0)], 6),
        ([record(0, 0), record(2, 6)], 6),
        ([record(0, 0), record(1, 4)], 6),
        ([record(0, 0, written=1)], 3),
        ([], 1),
    ],
    ids=["too few", "a gap", "an overlap", "a lost document", "nothing"],
)
async def test_what_does_not_add_up_is_not_written(store, records, documents_in):
    """In = written + failed + dropped, without a gap."""
    with pytest.raises(ManifestError, match="not written"):
        await manifest(store, records, documents_in=documents_in)
    assert await read_rank_manifest(store, 0) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_last_rank_finishes_the_run_whichever_it_is(store, outputs, order):
    """The run's manifest does not depend on it."""
    first = await manifest(store, [record(0, 0)], order[0], 3)
    assert await finish_run(store, outputs, first) is None
    assert not await outputs.exists(layout.SUCCESS)
    last = await manifest(store, [record(0, 0)], order[1], 3)
    run = await finish_run(store, outputs, last)
    assert (run.documents_in, run.documents_written, run.world_size) == (6, 4, 2)
    assert await read_run_manifest(outputs) == run
    assert await outputs.exists(layout.SUCCESS)


async def test_a_rank_of_another_configuration_does_not_count(store, outputs):
    """Manifests of two configurations are never added."""
    other = await manifest(store, [record(0, 0)], 0, 3)
    await store.put(layout.rank_manifest(0), msgspec.json.encode(msgspec.structs.replace(other, fingerprint="old")))
    assert await finish_run(store, outputs, await manifest(store, [record(0, 0)], 1, 3)) is None


async def test_an_unreadable_manifest_is_an_error(store):
    """It is not taken for an unfinished rank."""
    await store.put(layout.rank_manifest(0), b"{")
    with pytest.raises(CheckpointError, match=r"manifests/00000\.json cannot be read as RankManifest"):
        await read_rank_manifest(store, 0)


async def test_a_manifest_of_a_rank_that_is_done_anew_does_not_stay_in_the_runs(store, outputs):
    """Two ranks begin anew; the first finishes the run with the old manifest of the second, which has just removed the proofs."""
    await manifest(store, [record(0, 0), record(1, 3)], rank=1)
    first = await manifest(store, [record(0, 0), record(1, 3)], rank=0)
    assert (await finish_run(store, outputs, first)).documents_written == 8
    second = await manifest(store, [record(0, 0, 3, 0), record(1, 3, 3, 0)], rank=1)
    assert (await finish_run(store, outputs, second)).documents_written == 10
    assert (await read_run_manifest(outputs)).documents_written == 10
    assert await outputs.exists(layout.SUCCESS)


async def test_what_killed_uploads_have_left_goes_when_the_run_is_done(store, outputs):
    """Nothing of them is in a state or an output that is finished."""
    for place in (store, outputs):
        await place.put(layout.upload("of-a-killed-job"), b"half")
    await manifest(store, [record(0, 0), record(1, 3)], rank=1)
    await finish_run(store, outputs, await manifest(store, [record(0, 0), record(1, 3)], rank=0))
    assert await store.list(layout.UPLOADS) == await outputs.list(layout.UPLOADS) == []
