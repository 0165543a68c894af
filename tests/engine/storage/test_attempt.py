"""Claims, fences and take-overs."""

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import AttemptActiveError, CheckpointError, FencedError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt, latest_attempt, process_is_gone, this_process
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

CLAIM_AND_WAIT = """
import asyncio, sys
from airflow_provider_rollout.engine.storage.attempt import Attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
async def main():
    attempt = await Attempt.claim(ObjectStore.open(sys.argv[1]), rank=0, job_id="other", lost_after_s=4.0)
    print("claimed", flush=True)
    while True:
        await attempt.beat(attempt.record)
        await asyncio.sleep(0.2)
asyncio.run(main())
"""


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(str(tmp_path))


@pytest.fixture
def other_process(tmp_path):
    """A process that has claimed rank 0 and beats."""
    process = subprocess.Popen([sys.executable, "-c", CLAIM_AND_WAIT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def end(attempt, state="failed"):
    await attempt.beat(msgspec.structs.replace(attempt.record, state=state))


async def test_the_first_attempt_has_epoch_one_and_the_next_one_more(store):
    """Epochs count a rank's attempts."""
    first = await Attempt.claim(store, rank=3, job_id="a")
    await end(first)
    second = await Attempt.claim(store, rank=3, job_id="b")
    assert (first.epoch, second.epoch) == (1, 2)


async def test_an_attempt_that_beats_is_named_and_left_alone(store, other_process):
    """The second job learns which attempt works, where and since when."""
    with pytest.raises(
        AttemptActiveError, match=rf"attempt 1 of rank 0 .* since .* in process {other_process.pid} on "
    ):
        await Attempt.claim(store, rank=0, job_id="me", lost_after_s=4.0)


async def test_a_killed_process_is_replaced_at_once(store, other_process):
    """A process of this host that is gone needs no waiting."""
    other_process.kill()
    other_process.wait()
    async with asyncio.timeout(2):
        attempt = await Attempt.claim(store, rank=0, job_id="me", lost_after_s=60.0)
    assert attempt.epoch == 2


async def test_a_stopped_process_is_replaced_after_its_silence_and_fenced_when_it_wakes(store, other_process):
    """A zombie writes nothing more: it ends with FencedError."""
    os.kill(other_process.pid, signal.SIGSTOP)
    attempt = await Attempt.claim(store, rank=0, job_id="me", lost_after_s=1.0)
    assert attempt.epoch == 2
    os.kill(other_process.pid, signal.SIGCONT)
    assert await asyncio.to_thread(other_process.wait, 10) == 1
    newest, _ = await latest_attempt(store, 0)
    assert newest.job_id == "me"


async def test_of_two_claims_at_once_one_wins(store):
    """The create-only write decides, and whoever comes a moment later sees the winner's heart beat."""

    async def claim(number):
        attempt = await Attempt.claim(store, rank=0, job_id=f"job-{number}", lost_after_s=10.0)
        for _ in range(20):
            await attempt.beat(attempt.record)
            await asyncio.sleep(0.1)
        return attempt

    results = await asyncio.gather(*(claim(number) for number in range(8)), return_exceptions=True)
    assert sum(isinstance(result, Attempt) for result in results) == 1
    assert sum(isinstance(result, AttemptActiveError) for result in results) == 7


async def test_a_fenced_attempt_creates_nothing(store):
    """The fence is looked at before a write."""
    old = await Attempt.claim(store, rank=0, job_id="old")
    await end(old)
    await Attempt.claim(store, rank=0, job_id="new")
    with pytest.raises(FencedError, match=r"attempt 1 of rank 0 .* replaced by attempt 2"):
        await old.create(store, "chunks/x", b"old")
    assert not await store.exists("chunks/x")


async def test_what_an_earlier_attempt_left_is_replaced(store):
    """The newest attempt heals an object without commit record."""
    await store.create("00000_chunk_00000.parquet", b"torn work")
    attempt = await Attempt.claim(store, rank=0, job_id="a")
    await attempt.create(store, "00000_chunk_00000.parquet", b"whole work")
    assert await store.get("00000_chunk_00000.parquet") == b"whole work"


async def test_an_unreadable_record_is_an_error_and_not_an_absent_one(store):
    """Absent is not unreadable."""
    await store.put(layout.attempt(0, 1), b'{"epoch": ')
    with pytest.raises(CheckpointError, match="not an attempt record"):
        await Attempt.claim(store, rank=0, job_id="a")


def test_a_process_with_the_same_pid_but_another_start_is_gone():
    """Pids are reused."""
    here = this_process()
    assert not process_is_gone(here)
    assert process_is_gone(msgspec.structs.replace(here, start_time_s=here.start_time_s - 100))
    assert not process_is_gone(msgspec.structs.replace(here, host="elsewhere", pid=1))


async def test_a_beat_that_is_under_way_does_not_undo_what_the_attempt_works_for(store):
    """Its record was made before the fingerprint was known, and is written after it."""
    attempt = await Attempt.claim(store, rank=0, job_id="me")
    early = attempt.record
    settled = msgspec.structs.replace(early, fingerprint="f", rerun_token="t")
    for beats in ((attempt.beat(early), attempt.settle(settled)), (attempt.settle(settled), attempt.beat(early))):
        await asyncio.gather(*beats)
        newest, _ = await latest_attempt(store, 0)
        assert (newest.fingerprint, newest.rerun_token) == ("f", "t")
    await attempt.beat(early)
    assert (await latest_attempt(store, 0))[0].fingerprint == "f"
