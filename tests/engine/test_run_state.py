"""Rules of looking at a run from outside, and of emptying its state."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import (
    AttemptActiveError,
    CheckpointError,
    FencedError,
    InputError,
)
from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity
from airflow_provider_rollout.engine.run_state import LOST_AFTER_S, RunState, Watch
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt, latest_attempt, this_process
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

ELSEWHERE = ProcessIdentity("another-host", "another-boot", 1, 0.0)
GONE = msgspec.structs.replace(this_process(), start_time_s=1.0)


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def record(rank: int = 0, epoch: int = 1, **changes) -> AttemptRecord:
    """A running attempt of another host."""
    values = {
        "job_id": f"job-{epoch}",
        "rank": rank,
        "epoch": epoch,
        "state": "running",
        "fingerprint": "f",
        "process": ELSEWHERE,
        "started_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }
    return AttemptRecord(**{**values, **changes})


async def write(store: ObjectStore, *records: AttemptRecord) -> None:
    """Store attempts as jobs do."""
    for item in records:
        await store.put(layout.attempt(item.rank, item.epoch), msgspec.json.encode(item))


@pytest.fixture
def output(tmp_path):
    """The output of a run."""
    return ObjectStore.open(str(tmp_path / "out [a] +b"))


@pytest.fixture
def state(output):
    """The state of that run, where it lies by default."""
    return ObjectStore.open(f"{output.uri}/_rollout")


async def test_a_run_is_found_by_its_output_and_by_its_checkpoints(output, state):
    """A user has either URI at hand."""
    await write(state, record())
    for uri in (output.uri, f"{output.uri}/", state.uri):
        found = await RunState.find(uri)
        assert found.store.uri == state.uri
        assert await found.output_uri() == output.uri


async def test_a_place_without_a_run_is_told_and_not_made(tmp_path):
    """Looking writes nothing, and says where it looked."""
    with pytest.raises(InputError, match="_rollout"):
        await RunState.find(str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


async def test_every_rank_shows_its_newest_attempt_also_one_that_has_not_started(output, state):
    """The plan says how many ranks there are."""
    await state.put(layout.PLAN, b'{"world_size": 3, "shards": [], "parts": []}')
    await write(state, record(0, 1, state="interrupted"), record(0, 2, state="succeeded"), record(1, 1))
    ranks = await Watch(await RunState.find(output.uri)).look()
    assert [(item.rank, item.progress.verdict) for item in ranks] == [(0, "succeeded"), (1, "running"), (2, "starting")]
    assert ranks[0].progress.record.epoch == 2


async def test_the_age_of_a_heartbeat_is_taken_on_the_watchers_clock(output, state):
    """Two machines' clocks are never compared: what counts is when the object was last seen to change."""
    await write(state, record())
    clock = Clock()
    watch = Watch(await RunState.find(output.uri), clock)
    first = (await watch.look())[0]
    assert (first.heartbeat_age_s, first.has_moved, first.is_settled) == (0.0, False, False)
    clock.now_s += 7.0
    assert (await watch.look())[0].heartbeat_age_s == 7.0
    await write(state, record(heartbeat=1, updated_at="1999-01-01T00:00:00Z"))
    moved = (await watch.look())[0]
    assert (moved.heartbeat_age_s, moved.has_moved, moved.is_settled) == (0.0, True, True)
    clock.now_s += LOST_AFTER_S + 1
    assert (await watch.look())[0].progress.verdict == "lost"


async def test_an_attempt_whose_process_is_gone_is_lost_at_once(output, state):
    """On the job's own host nobody has to wait."""
    await write(state, record(process=GONE))
    assert (await Watch(await RunState.find(output.uri)).look())[0].progress.verdict == "lost"


async def test_an_unreadable_record_is_an_error(output, state):
    """A torn record is never taken for none."""
    await state.put(layout.attempt(0, 1), b'{"job_id": "torn')
    with pytest.raises(CheckpointError, match=r"attempts/00000/00000001\.json"):
        await Watch(await RunState.find(output.uri)).look()


async def test_the_history_has_every_attempt_in_order(output, state):
    """The attempts are the run's history."""
    await write(state, record(0, 2), record(0, 1, state="failed"), record(1, 1))
    attempts = await (await RunState.find(output.uri)).attempts()
    assert {rank: [item.epoch for item in items] for rank, items in attempts.items()} == {0: [1, 2], 1: [1]}


async def fill(output: ObjectStore, state: ObjectStore) -> None:
    """A run that has ended, with an output, and files that are not its own."""
    await write(state, record(0, 1, state="failed"), record(0, 2, process=GONE), record(1, 1, state="succeeded"))
    for key in (layout.PLAN, layout.JOB, layout.chunk(0, 0), layout.segment(0, 1, 1), layout.dead_letters(0, 0)):
        await state.put(key, b'{"world_size": 2}')
    await state.put(layout.cancel("job-1"), b"")
    for key in (layout.output(0, 0, "parquet"), layout.output(1, 12, "jsonl.zst"), layout.MANIFEST, layout.SUCCESS):
        await output.put(key, b"x")
    await output.put("notes.txt", b"mine")
    await output.put("00000_chunk_notes/mine.txt", b"mine")


async def test_a_removal_keeps_the_output_and_one_fencing_mark_for_each_rank(output, state):
    """Epochs go on, so a job that was believed dead and wakes up is fenced."""
    await fill(output, state)
    sleeper = Attempt(state, record(0, 2), lost_after_s=60.0)
    deleted = await (await RunState.find(output.uri)).remove(with_output=False)
    left = {info.key for info in await state.list()}
    assert left == {layout.attempt(0, 3), layout.attempt(1, 2)}
    assert deleted == 9
    assert await output.exists(layout.output(0, 0, "parquet"))
    mark = (await latest_attempt(state, 0))[0]
    assert (mark.state, mark.fingerprint, mark.error) == ("cancelled", "", "the state was removed by its user")
    with pytest.raises(FencedError):
        await sleeper.check_fence()
    assert (await Attempt.claim(state, rank=0, job_id="next")).epoch == 4


async def test_a_removal_with_the_output_leaves_files_that_are_not_the_runs(output, state):
    """Only what the layout spells is deleted."""
    await fill(output, state)
    await (await RunState.find(output.uri)).remove(with_output=True)
    left = {info.key for info in await output.list() if not info.key.startswith("_rollout/")}
    assert left == {"notes.txt", "00000_chunk_notes/mine.txt"}


async def test_a_removal_is_refused_while_a_job_is_at_work(output, state):
    """What a living job stands on is not taken away."""
    await fill(output, state)
    working = await Attempt.claim(state, rank=2, job_id="working")
    before = {info.key for info in await state.list()}
    run = await RunState.find(output.uri)

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.2)
            await working.beat(working.record)

    beats = asyncio.create_task(beat())
    with pytest.raises(AttemptActiveError, match="rank 2"):
        await run.remove(with_output=True)
    beats.cancel()
    assert before <= {info.key for info in await state.list()}
    assert await output.exists(layout.SUCCESS)
    await working.check_fence()


async def test_a_status_reads_no_chunk_however_many_there_are(output, state):
    """Attempts and manifests tell all; ten thousand commit records, which are not even readable here, cost nothing."""
    folder = Path(state.uri.removeprefix("file://")) / "chunks"
    for rank in range(8):
        await write(state, record(rank=rank, documents_done=1250 * 6000))
        (folder / f"{rank:05d}").mkdir(parents=True)
        for number in range(1250):
            (folder / f"{rank:05d}" / f"{number:07d}.json").touch()
    began_s = time.monotonic()
    ranks = await Watch(await RunState.find(output.uri)).look()
    assert len(ranks) == 8
    assert time.monotonic() - began_s < 2
