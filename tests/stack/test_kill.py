"""A person ends a task: its job and the job's server are gone within 10 s. Clearing ends the job too, and starts another that resumes."""

import time

import psutil
import pytest
from servers.airflow_stack import wait_until
from stack.scenario import scenario

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

on_both_ways = pytest.mark.parametrize(
    ("dag_id", "state", "store_uri"),
    [
        ("waiting_own_server", "running", "folder"),
        pytest.param("deferred_own_server", "deferred", "s3", marks=pytest.mark.s3),
    ],
    indirect=["store_uri"],
)


def whole_job(place) -> list[psutil.Process]:
    """The job, its guards and its server."""
    job = place.wait_job()
    wait_until(lambda: len(job.children(recursive=True)) >= 3, 60, "the job has started its server")
    return [job, *job.children(recursive=True)]


def wait_gone(processes: list[psutil.Process]) -> float:
    """Until none of them lives; the seconds it took."""
    started_s = time.monotonic()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []
    return time.monotonic() - started_s


@on_both_ways
def test_marking_a_task_failed_ends_its_job(stack, store_uri, dag_id, state):
    """Whether the worker watches or the triggerer."""
    with scenario(store_uri, 300) as place:
        run = stack.run(dag_id, **place.conf)
        processes = whole_job(place)
        wait_until(lambda: place.attempts()[-1].totals.get("requests_succeeded", 0) > 2, 30, "the job gets answers")
        run.wait_task(state)
        place.wait_watched()
        run.mark("failed")
        assert wait_gone(processes) < 10
        assert place.attempts()[-1].state == "cancelled"
        run.wait("failed")
        assert (place.launches, len(place.attempts())) == (1, 1)


@on_both_ways
def test_clearing_a_task_ends_its_job_and_resumes_the_work(stack, store_uri, dag_id, state):
    """The new try starts a job that goes on where the cancelled one stopped."""
    with scenario(store_uri, 40) as place:
        run = stack.run(dag_id, **place.conf)
        processes = whole_job(place)
        wait_until(lambda: place.attempts()[-1].totals.get("requests_succeeded", 0) > 2, 30, "the job gets answers")
        run.wait_task(state)
        place.wait_watched()
        run.clear()
        assert wait_gone(processes) < 10
        run.wait(timeout_s=150)
        place.check_complete()
        assert [attempt.state for attempt in place.attempts()] == ["cancelled", "succeeded"]
        assert run.result()["resumed"] > 0
        sent = sum(attempt.totals.get("requests_sent", 0) for attempt in place.attempts())
        assert sent <= 40 + 2  # those in flight when it was cancelled
