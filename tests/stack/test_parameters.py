"""What a task's parameters do on a real Airflow: ``timeout`` and ``force_rerun``."""

import pytest
from servers.airflow_stack import wait_until
from stack.scenario import scenario

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_a_job_that_passes_its_deadline_is_cancelled(stack, tmp_path):
    """``ROLLOUT_RETRY_POLICY`` ends a deferred task there; without it, in the worker, retries resume the work until it is done."""
    with (
        scenario(tmp_path / "late", 200, "--latency-ms", 1000) as late,
        scenario(tmp_path / "again", 60, "--latency-ms", 1000) as again,
    ):
        ending, resuming = stack.run("late", **late.conf), stack.run("late_retried", **again.conf)
        ending.wait("failed")
        assert (ending.task()["try_number"], late.launches) == (1, 1)
        assert [attempt.state for attempt in late.attempts()] == ["cancelled"]
        assert late.jobs() == []
        assert "RolloutTimeout" in ending.log()
        asked = late.requests
        assert 0 < asked < 200

        resuming.wait(timeout_s=200)
        again.check_complete()
        tries = resuming.task()["try_number"]
        assert tries > 1
        assert "RolloutTimeout" in resuming.log(try_number=1)
        *before, last = [attempt.state for attempt in again.attempts()]
        assert (set(before), last) == ({"cancelled"}, "succeeded")
        assert again.launches == tries
        assert again.requests <= 60 + 2 * (tries - 1)  # those in flight when it was cancelled
        assert late.requests == asked


def test_a_forced_rerun_asks_everything_once_more(stack, tmp_path):
    """Clearing a task with ``force_rerun`` begins anew; a retry of that goes on where it was killed."""
    with scenario(tmp_path, 20, "--latency-ms", 500) as place:
        run = stack.run("forced", **place.conf)
        run.wait()
        place.check_complete()
        assert place.requests == 20

        run.clear()
        place.wait_requests(20 + 14)
        (job,) = place.jobs()
        job.kill()
        wait_until(lambda: place.launches == 3, 60, "the retry has started a job", run.describe)
        run.wait()
        place.check_complete()
        assert 40 <= place.requests <= 40 + 2 + 9  # two in flight, two seconds of answers
        assert [attempt.state for attempt in place.attempts()][-1] == "succeeded"
        assert run.result()["resumed"] > 0
