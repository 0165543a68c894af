"""Secrets stay in Airflow's connections and in the environment of the job, whatever happens to a run on S3."""

import os
import sys

import pytest
from servers.airflow_stack import wait_until
from stack import secrets
from stack.conftest import on_s3
from stack.scenario import scenario

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@on_s3
def test_a_killed_job_on_s3_is_resumed_and_no_secret_is_seen_anywhere(stack, store_uri, monkeypatch):
    """Not in logs, XComs, rendered templates, trigger arguments, command lines, stored objects or any table of the database."""
    monkeypatch.setenv("DUMMY_API_KEY", secrets.API_KEY)
    with scenario(store_uri, 24, "--latency-ms", 500) as place, secrets.watch_command_lines() as command_lines:
        run = stack.run("deferred", **place.conf)
        job = place.wait_job()
        place.wait_requests(14)
        wait_until(lambda: bool(secrets.trigger_arguments(stack)), 60, "a trigger waits")
        (arguments,) = secrets.trigger_arguments(stack)
        job.kill()
        run.wait()
        place.check_complete()
        assert run.result()["resumed"] > 0
        assert 24 <= place.requests <= 24 + 2 + 9  # two in flight, two seconds of answers
        assert place.launches == len(place.attempts()) == 2
    assert f"{place.output}/_rollout" in repr(arguments)
    assert secrets.shown(repr(arguments).encode()) == []
    assert command_lines == []
    places = {**secrets.database(stack), **secrets.files(stack.home), **secrets.objects(store_uri)}
    assert {name: found for name, data in places.items() if (found := secrets.shown(data))} == {}
    assert {"xcom", "rendered_task_instance_fields", "task_state_store", "connection"} <= places.keys()
    assert any(name.endswith("attempt=2.log") for name in places)


def test_the_search_for_secrets_finds_them():
    """In a command line, and among bytes."""
    assert secrets.shown(b"..." + secrets.API_KEY.encode()) == [secrets.API_KEY]
    program = f"import time; time.sleep(60) # {secrets.API_KEY}"
    with secrets.watch_command_lines() as command_lines:
        pid = os.spawnl(os.P_NOWAIT, sys.executable, sys.executable, "-c", program)
        wait_until(lambda: bool(command_lines), 10, "the command line is seen")
        os.kill(pid, 9)
        os.waitpid(pid, 0)
