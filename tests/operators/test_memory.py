"""What a task instance remembers of its job."""

import pytest
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from airflow_task import make_context

from airflow_provider_rollout.operators.memory import MEMORY_KEY, Memory, mark_finished, recall, remember

MEMORY = Memory(job_id="j", rank=1, checkpoints="/c", spec_digest="d", handle={"pid": 1}, rerun_token="t")


def test_a_memory_is_kept_as_json_for_as_long_as_the_run():
    """Airflow would drop it after a month otherwise, and a cleared run could not resume."""
    context = make_context()
    assert recall(context) is None
    remember(context, MEMORY)
    assert recall(context) == MEMORY
    assert context["task_state_store"].retentions[MEMORY_KEY] == NEVER_EXPIRE


def test_a_result_that_reached_airflow_is_marked():
    """Clearing the task then lets the job look at the work again, instead of repeating the old result."""
    context = make_context()
    mark_finished(context, "j")
    assert recall(context) is None
    remember(context, MEMORY)
    mark_finished(context, "another")
    assert not recall(context).finished
    mark_finished(context, "j")
    assert recall(context).finished


def test_a_state_store_that_cannot_be_read_is_not_an_empty_one():
    """A second job would be started beside the first."""
    context = make_context()

    class Broken:
        def get(self, *_):
            raise ConnectionError("no supervisor")

    context["task_state_store"] = Broken()
    with pytest.raises(ConnectionError):
        recall(context)
