"""A try ends, another goes on: what was asked is not asked again, and no job is started twice or lost."""

import signal

import pytest
from stack.conftest import on_s3
from stack.scenario import scenario

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_a_retry_resumes_a_job_that_was_killed(stack, tmp_path):
    """The second try asks for what is missing; at most what was in flight or younger than the last flush is asked again."""
    with scenario(tmp_path, 24, "--latency-ms", 500) as place:
        run = stack.run("deferred", **place.conf)
        job = place.wait_job()
        place.wait_requests(14)
        job.kill()
        run.wait()
        place.check_complete()
        assert run.result()["resumed"] > 0
        assert 24 <= place.requests <= 24 + 2 + 9  # two in flight, two seconds of answers
        assert place.launches == len(place.attempts()) == 2


@on_s3
def test_clearing_a_failed_and_a_successful_task(stack, store_uri):
    """The failed one is asked for what is missing; the successful one asks for nothing, and tells the same again."""
    fault = '[{"match": "document 003", "action": "status", "status": 400, "first": 1}]'
    with scenario(store_uri, 6, "--faults", fault) as place:
        run = stack.run("strict", **place.conf)
        run.wait("failed")
        assert "FailureBudgetError" in run.log() or "document" in run.log()
        asked = place.requests
        run.clear()
        run.wait()
        place.check_complete()
        assert asked == 4
        assert place.requests == 6 + 1  # the failed document twice
        first = run.result()
        run.clear()
        run.wait_task("success")
        run.wait()
        assert place.requests == 6 + 1
        again = run.result()
        assert (again["documents_written"], again["resumed"]) == (first["documents_written"], 6)
        place.check_complete()


def test_a_job_that_runs_is_watched_again(stack, tmp_path):
    """A task process is killed; the next try finds the job of the first at work."""
    with scenario(tmp_path, 30, "--latency-ms", 1000) as place:
        run = stack.run("waiting", **place.conf)
        place.wait_requests(4)
        stack.worker().children()[0].kill()
        run.wait()
        place.check_complete()
        assert place.requests == 30
        assert place.launches == len(place.attempts()) == 1
        assert "is at work; watching it" in run.log(try_number=2)


def test_a_job_that_ended_unseen_is_only_finalised(stack, tmp_path):
    """A whole worker dies, which Airflow notices late; the job has succeeded by then, and the next try takes its result."""
    with scenario(tmp_path, 8, "--latency-ms", 500) as place:
        run = stack.run("waiting", **place.conf)
        place.wait_requests(2)
        worker = stack.worker()
        for process in (worker, *worker.children()):
            process.kill()
        run.wait()
        place.check_complete()
        assert place.requests == 8
        assert place.launches == len(place.attempts()) == 1
        assert "has succeeded; taking its result" in run.log(try_number=2)


def test_a_workers_sigterm_is_not_a_cancel(stack, tmp_path):
    """A machine tells its worker to stop; the job goes on, and the next try watches it again."""
    with scenario(tmp_path, 30, "--latency-ms", 1000) as place:
        run = stack.run("waiting", **place.conf)
        place.wait_requests(4)
        stack.worker().send_signal(signal.SIGTERM)
        run.wait()
        place.check_complete()
        assert place.requests == 30
        assert place.launches == len(place.attempts()) == 1
        assert "goes on" in run.log(try_number=1)


def test_the_scheduler_restarts(stack, tmp_path):
    """The scheduler and its executor are killed and come back; the job runs on, and is watched again."""
    with scenario(tmp_path, 30, "--latency-ms", 1000) as place:
        run = stack.run("waiting", **place.conf)
        place.wait_requests(4)
        stack.crash("scheduler")
        stack.start("scheduler")
        run.wait(timeout_s=180)
        place.check_complete()
        assert place.requests == 30
        assert place.launches == len(place.attempts()) == 1


def test_the_triggerer_is_killed_while_a_task_is_deferred(stack, statsd, tmp_path):
    """Another triggerer takes the watch over; nothing is asked, started or counted twice."""
    before = statsd.counters()
    with scenario(tmp_path, 40, "--latency-ms", 1000) as place:
        run = stack.run("deferred", **place.conf)
        run.wait_task("deferred")
        place.wait_requests(12)
        stack.crash("triggerer")
        place.wait_requests(20)
        stack.start("triggerer")
        run.wait(timeout_s=180)
        place.check_complete()
        assert place.requests == 40
        assert place.launches == len(place.attempts()) == 1
        result = run.result()
    counted = {name: value - before.get(name, 0.0) for name, value in statsd.counters().items()}
    for name in ("documents_written", "prompt_tokens", "completion_tokens", "requests_sent"):
        assert counted[f"airflow.rollout.{name}"] == result[name]
