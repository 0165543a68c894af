"""Finding the job of an earlier try, or starting one: with real jobs on a dummy server."""

import asyncio
import json
import time
from pathlib import Path

import msgspec
import pytest
from airflow_task import DUMMY, make_context, write_documents, write_record

from airflow_provider_rollout.engine.config import JobSpec
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.memory import MEMORY_KEY, recall, remember
from airflow_provider_rollout.operators.work import Work, new_job_id


@pytest.fixture
def make_work(tmp_path, monkeypatch):
    """Makes tries of one task instance; ends the jobs that they leave."""
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    source = write_documents(tmp_path / "in")
    context = make_context()

    def make(*, durable=True, force_rerun=False, **fields) -> Work:
        values = {"prompt_template": "{text}", "config": DUMMY, **fields}
        spec = JobSpec(job_id="-", source=[source], output=str(tmp_path / "out"), **values)
        return Work(
            spec=spec,
            environment={},
            hook=VllmHook(None),
            aws_conn_id=None,
            context=context,
            durable=durable,
            force_rerun=force_rerun,
        )

    make.context = context
    make.state = tmp_path / "out" / "_rollout"
    yield make
    for spec in (tmp_path / "out/_rollout/specs").glob("*.json"):
        handle = (recall(context).handle if recall(context) else None) or {}
        if handle.get("job_id") == spec.stem:
            ProcessLauncher().cancel(handle, kill_after_s=0.0)


def end_of(work: Work, job) -> dict:
    """Watch a job to its end."""
    watching = work.watcher(job).watch(poll_interval_s=0.1, deadline=time.time() + 60, say=lambda _: None)
    return asyncio.run(watching)


def stored_spec(state: Path, job_id: str) -> dict:
    """What the job was told."""
    return json.loads((state / f"specs/{job_id}.json").read_text())


def test_a_first_try_starts_a_job_that_does_the_work(make_work):
    """The memory holds its handle, the store its spec."""
    work = make_work()
    job, event = work.find_or_submit()
    assert (event, job.reattached) == (None, False)
    assert recall(make_work.context).handle == job.handle
    assert stored_spec(make_work.state, job.job_id)["prompt_template"] == "{text}"
    assert end_of(work, job)["status"] == "succeeded"


def test_a_second_try_finds_the_job_of_the_first(make_work):
    """It does not start another one."""
    work = make_work()
    job, _ = work.find_or_submit()
    again, event = make_work().find_or_submit()
    assert (again.job_id, again.handle) == (job.job_id, job.handle)
    assert event is not None or again.reattached
    assert len(list((make_work.state / "specs").iterdir())) == 1
    end_of(work, job)


def test_a_success_that_never_reached_airflow_is_taken_without_a_new_job(make_work):
    """The hand-back failed; every retry would fail in the same way otherwise."""
    work = make_work()
    job, _ = work.find_or_submit()
    end_of(work, job)
    again, event = make_work().find_or_submit()
    assert (again.job_id, event["status"]) == (job.job_id, "succeeded")


def test_a_task_that_is_cleared_after_its_success_asks_the_job_again(make_work):
    """The job knows within seconds whether the work is still the same."""
    work = make_work()
    job, _ = work.find_or_submit()
    end_of(work, job)
    remember(make_work.context, msgspec.structs.replace(recall(make_work.context), finished=True))
    again, event = work.find_or_submit()
    assert (again.job_id != job.job_id, event) == (True, None)
    event = end_of(work, again)
    assert (event["status"], event["resumed"]) == ("succeeded", 5)


def test_a_lost_job_is_resumed_by_a_new_one(make_work):
    """Its record says running, its process is gone."""
    work = make_work()
    job, _ = work.find_or_submit()
    ProcessLauncher().cancel(job.handle, kill_after_s=0.0)
    again, event = work.find_or_submit()
    assert (again.job_id != job.job_id, event) == (True, None)
    assert end_of(work, again)["status"] == "succeeded"


def test_a_launch_that_was_never_seen_is_done_again(make_work):
    """The worker died between its note and the start of the job."""
    work = make_work()
    job, _ = work.find_or_submit()
    ProcessLauncher().cancel(job.handle, kill_after_s=0.0)
    remember(make_work.context, msgspec.structs.replace(recall(make_work.context), handle=None, job_id="never"))
    again, event = work.find_or_submit()
    assert (again.reattached, event) == (False, None)
    assert end_of(work, again)["status"] == "succeeded"


def test_a_job_that_runs_without_a_known_handle_is_watched_by_its_record(make_work):
    """The worker died between the start of the job and its second note."""
    work = make_work()
    job, _ = work.find_or_submit()
    end_of(work, job)
    remember(make_work.context, msgspec.structs.replace(recall(make_work.context), handle=None, job_id="seen"))
    write_record(make_work.state, job_id="seen", epoch=9)
    again, event = work.find_or_submit()
    assert (again.job_id, again.handle, again.reattached, event) == ("seen", None, True, None)


def test_other_parameters_stop_the_running_job_and_resume_its_work(make_work):
    """Somebody changed the DAG meanwhile; what does not change the answers is taken over at once."""
    slow = {**DUMMY, "max_concurrent_generations": 1, "model_kwargs": {"latency_ms": 300}}
    work = make_work(config=slow)
    job, _ = work.find_or_submit()
    remember(make_work.context, msgspec.structs.replace(recall(make_work.context), spec_digest="other"))
    again, _ = make_work(config={**slow, "max_concurrent_generations": 2}).find_or_submit()
    assert again.job_id != job.job_id
    assert ProcessLauncher().status(job.handle) == "gone"
    assert end_of(work, again)["status"] == "succeeded"


def test_a_job_for_another_place_is_not_the_job_of_this_try(make_work, tmp_path):
    """The output is a template, and rendered differently now."""
    work = make_work()
    job, _ = work.find_or_submit()
    end_of(work, job)
    elsewhere = make_work(checkpoints=str(tmp_path / "elsewhere"))
    again, event = elsewhere.find_or_submit()
    assert (again.job_id != job.job_id, event) == (True, None)
    end_of(elsewhere, again)


def test_a_forced_rerun_keeps_its_token_until_it_is_done(make_work):
    """A retry would begin anew otherwise, and never end."""
    work = make_work(force_rerun=True)
    job, _ = work.find_or_submit()
    first = recall(make_work.context).rerun_token
    ProcessLauncher().cancel(job.handle, kill_after_s=0.0)
    job, _ = work.find_or_submit()
    assert recall(make_work.context).rerun_token == first == stored_spec(make_work.state, job.job_id)["rerun_token"]
    assert end_of(work, job)["status"] == "succeeded"
    remember(make_work.context, msgspec.structs.replace(recall(make_work.context), finished=True))
    job, _ = work.find_or_submit()
    assert recall(make_work.context).rerun_token not in {first, None}
    assert end_of(work, job)["resumed"] == 0


def test_a_task_that_is_not_durable_leaves_no_memory(make_work):
    """``durable=False``: the state's own store still keeps two jobs apart."""
    work = make_work(durable=False)
    job, _ = work.find_or_submit()
    assert make_work.context["task_state_store"].get(MEMORY_KEY) is None
    assert end_of(work, job)["status"] == "succeeded"


def test_the_name_of_a_job_fits_into_a_key_and_a_file_name():
    """Task ids hold dots, slashes are possible, and both ids may be long."""
    name = new_job_id("dag/with spaces", "group.task" * 30, 7)
    assert name.startswith("dag-with-spaces.group.task")
    assert len(name) < 110
    assert "-00007-" in name
