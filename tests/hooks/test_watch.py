"""Watching a job until it ends."""

import asyncio
import os
import time

import pytest
from airflow_task import make_handle, make_job, write_record

from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity, Progress
from airflow_provider_rollout.engine.storage.attempt import this_process
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.hooks.watch import MAX_FAILED_POLLS, Watcher, progress_line


class Clock:
    """Monotonic seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_watcher(job, **more) -> Watcher:
    """A watcher without connections."""
    return Watcher(job, hook=VllmHook(None), aws_conn_id=None, **more)


async def watch(watcher: Watcher, **more) -> tuple[dict, list[Progress]]:
    """Watch quickly; the event and what was said."""
    said: list[Progress] = []

    async def say(progress, store):
        said.append(progress)

    event = await watcher.watch(**{"poll_interval_s": 0.01, "deadline": None, "say": say, **more})
    return event, said


async def test_a_success_is_told_with_what_was_resumed(tmp_path):
    """The event is small, and is JSON."""
    write_record(tmp_path, state="succeeded", documents_done=5, documents_resumed=2, exit_code=0)
    event, said = await watch(make_watcher(make_job(tmp_path)))
    assert (event["status"], event["resumed"], event["exit_code"], event["log_tail"]) == ("succeeded", 2, 0, "")
    assert event["job"]["job_id"] == "job-1"
    assert [progress.verdict for progress in said] == ["succeeded"]


async def test_a_failure_is_told_with_its_class_and_the_end_of_the_log(tmp_path):
    """What a person needs to know stands in the task's own log."""
    (tmp_path / "job.log").write_text("\n".join(f"line {number}" for number in range(100)))
    write_record(tmp_path, state="failed", error="the shard x is gone", error_class="ShardError", exit_code=1)
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=make_handle(tmp_path))))
    assert (event["status"], event["error_class"], event["exit_code"]) == ("failed", "ShardError", 1)
    assert "the shard x is gone" in event["reason"]
    assert event["log_tail"].endswith("line 99")


async def test_the_log_of_the_server_outweighs_that_of_the_job(tmp_path):
    """When the server failed, its log knows why."""
    (tmp_path / "job.log").write_text("job")
    write_record(tmp_path, state="failed", error="x", server_log_tail="CUDA out of memory")
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=make_handle(tmp_path))))
    assert event["log_tail"] == "CUDA out of memory"


async def test_a_job_that_ended_without_a_word_is_lost(tmp_path):
    """Its process is gone and its record still says running."""
    write_record(tmp_path)
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=make_handle(tmp_path))))
    assert event["status"] == "lost"


async def test_a_job_that_ended_before_its_claim_is_told_by_its_exit_code(tmp_path):
    """It may have found another attempt at work, or the rank done."""
    handle = make_handle(tmp_path)
    (tmp_path / "job.exit").write_text("75")
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=handle)))
    assert (event["status"], event["exit_code"]) == ("lost", 75)
    (tmp_path / "job.exit").write_text("0")
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=handle)))
    assert event["status"] == "succeeded"


async def test_silence_is_measured_on_the_watchers_own_clock(tmp_path):
    """The record of a job on another machine that stops changing means lost, whatever the time in it."""
    clock = Clock()
    watcher = make_watcher(make_job(tmp_path, handle=make_handle(tmp_path, host="elsewhere")), clock=clock)
    write_record(tmp_path, updated_at="1970-01-01T00:00:00+00:00")
    assert (await watcher.look()).verdict == "running"
    clock.now_s = 59.0
    assert (await watcher.look()).verdict == "running"
    write_record(tmp_path, heartbeat=1)
    clock.now_s = 118.0
    assert (await watcher.look()).verdict == "running"
    clock.now_s = 179.0
    assert (await watcher.look()).verdict == "lost"


async def test_five_failed_looks_in_a_row_end_the_watch_and_not_the_job(tmp_path):
    """A retry finds the job again."""
    write_record(tmp_path)
    (tmp_path / "attempts/00000/00000001.json").write_bytes(b"{")
    event, said = await watch(make_watcher(make_job(tmp_path)))
    assert event["status"] == "error"
    assert f"{MAX_FAILED_POLLS} looks" in event["reason"]
    assert said == []
    assert not (tmp_path / "cancel").exists()


async def test_a_few_failed_looks_do_no_harm(tmp_path):
    """A store that is away for a moment does not fail a paid job."""
    record = tmp_path / "attempts/00000/00000001.json"
    write_record(tmp_path)
    record.write_bytes(b"{")

    async def mend() -> None:
        await asyncio.sleep(0.15)
        write_record(tmp_path, state="succeeded")

    async with asyncio.TaskGroup() as group:
        group.create_task(mend())
        event, _ = await watch(make_watcher(make_job(tmp_path)), poll_interval_s=0.1)
    assert event["status"] == "succeeded"


async def test_the_deadline_cancels_the_job(tmp_path):
    """On every machine: by the marker in its state."""
    write_record(tmp_path)
    job = make_job(tmp_path, handle=make_handle(tmp_path, host="elsewhere"))

    async def job_ends() -> None:
        while not (tmp_path / "cancel/job-1").exists():
            await asyncio.sleep(0.01)
        write_record(tmp_path, state="cancelled", heartbeat=1)

    async with asyncio.TaskGroup() as group:
        group.create_task(job_ends())
        event, _ = await watch(make_watcher(job), deadline=time.time() + 0.1, poll_interval_s=10.0)
    assert event["status"] == "timeout"


async def test_a_job_that_ends_well_at_its_deadline_has_ended_well(tmp_path):
    """The last look decides, not the order of the cancel."""
    write_record(tmp_path, state="succeeded")
    event, _ = await watch(make_watcher(make_job(tmp_path)), deadline=time.time() - 1)
    assert event["status"] == "succeeded"


async def test_a_watcher_that_is_told_to_stop_leaves_the_job_alone(tmp_path):
    """And does so within a second, though the next look is far away."""
    write_record(tmp_path)
    job = make_job(tmp_path, handle=make_handle(tmp_path, host="elsewhere"))
    started_s = time.monotonic()
    event, _ = await watch(make_watcher(job), poll_interval_s=60.0, stopped=lambda: time.monotonic() > started_s + 0.2)
    assert event["status"] == "stopped"
    assert time.monotonic() - started_s < 2
    assert not (tmp_path / "cancel").exists()


async def test_events_stay_small_whatever_the_log(tmp_path):
    """They go into Airflow's database."""
    (tmp_path / "job.log").write_text("x" * 1_000_000)
    write_record(tmp_path, state="failed", error="y" * 100_000)
    event, _ = await watch(make_watcher(make_job(tmp_path, handle=make_handle(tmp_path))))
    assert len(str(event)) < 8000


def record(**fields) -> AttemptRecord:
    """A record of this process."""
    here = this_process()
    process = ProcessIdentity(host=here.host, boot_id=here.boot_id, pid=os.getpid(), start_time_s=here.start_time_s)
    values = {"state": "running", "fingerprint": "f", "process": process, "started_at": "", "updated_at": ""}
    return AttemptRecord(job_id="j", rank=3, epoch=1, **{**values, **fields})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"documents_done": 5}, "rank 3 running; 5 documents"),
        (
            {
                "documents_done": 50,
                "documents_total": 200,
                "documents_resumed": 20,
                "rates_per_s": {"requests_succeeded": 4.25, "completion_tokens": 812.4},
                "queues": {"in_flight": 64},
                "totals": {"cache_hits": 7, "documents_failed": 1, "requests_retried": 2},
                "top_causes": {"BadRequestError 400": 1},
                "eta_s": 240.0,
            },
            (
                "rank 3 running; 50 of 200 documents (20 from earlier attempts); 4.2 requests/s, 812 tokens/s; "
                "64 in flight; 7 cache hits; 1 failed; 2 retried; causes BadRequestError 400: 1; 4 min left"
            ),
        ),
    ],
)
def test_progress_is_one_line(fields, line):
    """It goes to the task's log with every look."""
    assert progress_line(Progress("running", "x", record(**fields))) == line


def test_progress_without_a_record_is_its_reason():
    """A job that has not claimed its rank yet has nothing to count."""
    assert progress_line(Progress("starting", "job j is starting")) == "job j is starting"
