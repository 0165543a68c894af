"""Finding the job of an earlier try, or starting one."""

import asyncio
import dataclasses
import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from airflow_task import DUMMY, make_context, make_handle, say_nothing, write_documents, write_record

from airflow_provider_rollout.engine.config import JobSpec
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.memory import MEMORY_KEY, Memory, recall, remember
from airflow_provider_rollout.operators.parameters import spec_digest
from airflow_provider_rollout.operators.work import Work, new_job_id


class Task:
    """One task instance, whose tries a test makes one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "out" / "_rollout"
        self.context = make_context()
        self.source = write_documents(folder / "in")
        self.handles = []

    def work(self, *, durable=True, force_rerun=False, **fields) -> Work:
        """A try with these parameters."""
        values = {"prompt_template": "{text}", "config": DUMMY, **fields}
        spec = JobSpec(job_id="-", source=[self.source], output=str(self.folder / "out"), **values)
        return Work(
            spec=spec,
            environment={},
            hook=VllmHook(None),
            aws_conn_id=None,
            context=self.context,
            durable=durable,
            force_rerun=force_rerun,
        )

    def find(self, work: Work):
        """What the try does; whatever it started is ended with the test."""
        job, event = work.find_or_submit()
        if job.handle is not None:
            self.handles.append(job.handle)
        return job, event

    def remember(self, work: Work, *, handle="gone", **fields) -> None:
        """What an earlier try with the same parameters would have left."""
        if handle == "gone":
            handle = make_handle(self.folder)
        values = {
            "job_id": "job-1",
            "rank": 0,
            "checkpoints": str(self.state),
            "spec_digest": spec_digest(work.spec),
            "handle": handle,
        }
        remember(self.context, Memory(**{**values, **fields}))

    def spec(self, job_id: str) -> dict:
        """What a job was told."""
        return json.loads((self.state / f"specs/{job_id}.json").read_text())


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task instance; its jobs are ended with the test."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "logs"))
    instance = Task(tmp_path)
    yield instance
    for handle in instance.handles:
        ProcessLauncher().cancel(handle, kill_after_s=0.0)


@pytest.fixture
def running(tmp_path):
    """The handle of a job that is at work."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield make_handle(tmp_path, pid=process.pid, create_time=psutil.Process(process.pid).create_time())
        process.kill()


def test_a_first_try_starts_a_job_that_does_the_work(task):
    """The memory holds its handle, the store its spec."""
    work = task.work()
    job, event = task.find(work)
    assert (event, job.reattached) == (None, False)
    assert recall(task.context).handle == job.handle
    assert task.spec(job.job_id)["prompt_template"] == "{text}"
    watching = work.watcher(job).watch(poll_interval_s=0.1, deadline=time.time() + 60, say=say_nothing)
    assert asyncio.run(watching)["status"] == "succeeded"


def test_a_second_try_watches_the_job_of_the_first(task, running):
    """It does not start another one."""
    work = task.work()
    task.remember(work, handle=running)
    write_record(task.state)
    job, event = task.find(work)
    assert (job.job_id, job.handle, job.reattached, event) == ("job-1", running, True, None)
    assert not (task.state / "specs").exists()


def test_a_success_that_never_reached_airflow_is_taken_without_a_new_job(task):
    """The hand-back failed; every retry would fail in the same way otherwise."""
    work = task.work()
    task.remember(work)
    write_record(task.state, state="succeeded", documents_resumed=3)
    job, event = task.find(work)
    assert (job.job_id, event["status"], event["resumed"]) == ("job-1", "succeeded", 3)
    assert not (task.state / "specs").exists()


@pytest.mark.parametrize("more", [{"finished": True}, {"spec_digest": "other"}])
def test_a_task_that_is_cleared_or_changed_after_its_success_asks_a_job_again(task, more):
    """The job knows within seconds whether the work is still the same."""
    work = task.work()
    task.remember(work, **more)
    write_record(task.state, state="succeeded")
    job, event = task.find(work)
    assert (job.job_id != "job-1", event) == (True, None)


@pytest.mark.parametrize("state", ["running", "failed", "interrupted", "cancelled"])
def test_a_job_that_is_gone_or_failed_is_resumed_by_a_new_one(task, state):
    """A record that says running does not help when its process has ended."""
    work = task.work()
    task.remember(work)
    write_record(task.state, state=state)
    job, event = task.find(work)
    assert (job.job_id != "job-1", job.reattached, event) == (True, False, None)


def test_a_launch_that_was_never_seen_is_done_again(task):
    """The worker died between its note and the store's receipt of the spec, without which no job starts."""
    work = task.work()
    task.remember(work, handle=None)
    job, event = task.find(work)
    assert (job.job_id != "job-1", event) == (True, None)


def test_a_launch_that_may_have_been_seen_by_nobody_is_awaited(task):
    """The worker died after the spec was stored; if there is a job, it has not claimed its rank yet."""
    work = task.work()
    task.remember(work, handle=None)
    (task.state / "specs").mkdir(parents=True)
    (task.state / "specs" / "job-1.json").touch()
    job, event = task.find(work)
    assert (job.job_id, job.handle, job.reattached, event) == ("job-1", None, True, None)


def test_a_job_that_runs_without_a_known_handle_is_watched_by_its_record(task):
    """The worker died between the start of the job and its second note."""
    work = task.work()
    task.remember(work, handle=None)
    write_record(task.state)
    job, event = task.find(work)
    assert (job.job_id, job.handle, job.reattached, event) == ("job-1", None, True, None)


def test_other_parameters_stop_the_running_job(task, running):
    """Somebody changed the DAG meanwhile; the work is taken over with the parameters of now."""
    work = task.work()
    task.remember(work, handle=running, spec_digest="other")
    write_record(task.state)
    job, _ = task.find(work)
    assert job.job_id != "job-1"
    assert ProcessLauncher().status(running) == "gone"
    assert (task.state / "cancel/job-1").exists()


def test_a_job_for_another_place_is_not_the_job_of_this_try(task, running):
    """The output is a template, and was rendered differently."""
    work = task.work()
    task.remember(work, handle=running, checkpoints="/elsewhere")
    job, event = task.find(work)
    assert (job.job_id != "job-1", event) == (True, None)
    assert ProcessLauncher().status(running) == "running"


def test_a_forced_rerun_keeps_its_token_until_it_is_done(task):
    """A retry would begin anew otherwise, and never end."""
    work = task.work(force_rerun=True)
    task.remember(work, rerun_token="token")
    write_record(task.state, state="failed")
    job, _ = task.find(work)
    assert recall(task.context).rerun_token == task.spec(job.job_id)["rerun_token"] == "token"
    task.remember(work, rerun_token="token", finished=True)
    write_record(task.state, state="succeeded")
    job, _ = task.find(work)
    assert task.spec(job.job_id)["rerun_token"] not in {"token", None}


def test_without_a_forced_rerun_there_is_no_token(task):
    """A finished rank stays finished."""
    job, _ = task.find(task.work())
    assert task.spec(job.job_id)["rerun_token"] is None


def test_a_task_that_is_not_durable_leaves_no_memory(task, running):
    """``durable=False``: the claim on the rank still keeps two jobs apart."""
    work = task.work(durable=False)
    task.remember(work, handle=running)
    job, event = task.find(work)
    assert (job.job_id != "job-1", event) == (True, None)
    assert task.context["task_state_store"].get(MEMORY_KEY)["job_id"] == "job-1"


def test_the_name_of_a_job_fits_into_a_key_and_a_file_name():
    """Task ids hold dots, slashes are possible, and both ids may be long."""
    name = new_job_id("dag/with spaces", "group.task" * 30, 7)
    assert name.startswith("dag-with-spaces.group.task")
    assert len(name) < 110
    assert "-00007-" in name


def test_a_try_does_not_show_its_secrets(task):
    """Its environment holds keys, and the context too."""
    task.context["secret"] = "sk-context"
    text = repr(dataclasses.replace(task.work(), environment={"ROLLOUT_API_KEY": "sk-environment"}))
    assert "sk-" not in text
