"""Waiting for a job, in the worker and through the trigger, and leaving the wait."""

import asyncio
import json
import threading
import time

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from airflow.sdk.execution_time.timeout import timeout
from airflow_task import DUMMY, make_context, make_job, say_nothing

from airflow_provider_rollout.exceptions import RolloutCancelled, RolloutJobLost, RolloutTimeout
from airflow_provider_rollout.hooks.watch import Job
from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.memory import recall

SLOW = {**DUMMY, "model_kwargs": {"latency_ms": 60000}}


def test_a_deferred_task_hands_its_job_to_the_trigger_and_takes_the_event_back(make_operator):
    """No secret goes along, and no timeout of Airflow comes before the trigger's own."""
    operator = make_operator(deferrable=True, timeout=300, config={**DUMMY, "api_key": "sk-secret"})
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(make_operator.context)
    _, arguments = deferral.value.trigger.serialize()
    assert "sk-secret" not in json.dumps(arguments)
    assert deferral.value.timeout.total_seconds() > 300
    assert arguments["deadline"] == pytest.approx(time.time() + 300, abs=30)
    event = _wait_for(operator, arguments["job"], make_operator.context)
    assert operator.execute_complete(make_operator.context, event)["documents_written"] == 5


def test_a_cleared_task_outlives_the_end_of_its_old_job(make_operator, tmp_path):
    """The trigger's kill reaches the job while the new try watches it already; the new try starts its own."""
    operator = make_operator(deferrable=True)
    old = make_job(tmp_path / "out/_rollout", reattached=True)
    event = {"status": "cancelled", "job": msgspec.to_builtins(old), "reason": "", "resumed": 0}
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute_complete(make_operator.context, event)
    _, arguments = deferral.value.trigger.serialize()
    assert arguments["job"]["job_id"] != old.job_id
    assert not arguments["job"]["reattached"]


def test_work_that_is_done_is_not_deferred(make_operator):
    """The job looks and ends; a deferral would take longer."""
    make_operator().execute(make_operator.context)
    result = make_operator(deferrable=True).execute(make_operator.context)
    assert result["resumed"] == 5


def test_the_timeout_cancels_the_job(make_operator):
    """Its work is kept; a retry resumes it."""
    operator = make_operator(timeout=1.0, config=SLOW)
    with pytest.raises(RolloutTimeout, match="deadline"):
        operator.execute(make_operator.context)
    assert ProcessLauncher().status(recall(make_operator.context).handle) == "gone"


def test_airflows_own_timeout_cancels_the_job_too(make_operator):
    """``execution_timeout`` raises in the middle of the wait."""
    operator = make_operator(config=SLOW)
    with timeout(1), pytest.raises(AirflowTaskTimeout):
        operator.execute(make_operator.context)
    assert ProcessLauncher().status(recall(make_operator.context).handle) == "gone"


@pytest.mark.parametrize(
    ("state", "error", "liveness"),
    [("running", RolloutJobLost, "running"), ("failed", RolloutCancelled, "gone")],
)
def test_a_machine_that_goes_away_leaves_the_job_and_a_person_ends_it(make_operator, state, error, liveness):
    """SIGTERM calls ``on_kill`` in both cases; Airflow's database tells them apart."""
    operator = make_operator(config=SLOW)
    context = {**make_operator.context, "ti": make_context(states={"r": {"ask": state}})["ti"]}
    threading.Timer(2.0, operator.on_kill).start()
    with pytest.raises(error):
        operator.execute(context)
    handle = recall(context).handle
    until_s = time.monotonic() + 20
    while ProcessLauncher().status(handle) != liveness and time.monotonic() < until_s:
        time.sleep(0.1)
    assert ProcessLauncher().status(handle) == liveness


def _wait_for(operator, job, context) -> dict:
    """The event that the trigger would send, without its wait."""
    watcher = operator._execution(context).work.watcher(msgspec.convert(job, Job))
    return asyncio.run(watcher.watch(poll_interval_s=0.2, deadline=None, say=say_nothing))
