"""Who told a task to stop."""

import pytest
from airflow.sdk.exceptions import AirflowException
from airflow_task import make_context

from airflow_provider_rollout.operators.stop import is_ended_by_person


@pytest.mark.parametrize(
    ("states", "map_index", "by_person"),
    [
        ({"r": {"ask": "running"}}, -1, False),
        ({"r": {"ask": "failed"}}, -1, True),
        ({"r": {"ask": "success"}}, -1, True),
        ({"r": {"ask": None}}, -1, True),
        ({"r": {"ask": "restarting"}}, -1, True),
        ({}, -1, True),
        ({"r": {"ask_2": "running"}}, 2, False),
        ({"r": {"ask_2": "failed"}}, 2, True),
    ],
)
def test_a_person_ended_the_task_if_airflow_has_another_state_for_it(states, map_index, by_person):
    """A machine that goes away leaves the task "running" in Airflow's database."""
    context = make_context(states=states, map_index=map_index)
    assert is_ended_by_person(context) is by_person
    assert context["ti"].asked == {"dag_id": "d", "map_index": map_index, "task_ids": ["ask"], "run_ids": ["r"]}


@pytest.mark.parametrize("error", [AirflowException("gone"), EOFError(), BrokenPipeError()])
def test_nobody_to_ask_means_the_machine(error):
    """Better a job too many than a night's work lost."""
    assert is_ended_by_person(make_context(states=error)) is False
