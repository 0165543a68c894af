"""What a task that waits can be told."""

from datetime import timedelta

import pytest

from airflow_provider_rollout.operators.watching import WatchingOperator


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, None), (90, 90), (timedelta(minutes=1.5), 90.0)], ids=["none", "seconds", "timedelta"]
)
def test_a_timeout_is_a_number_or_a_timedelta(given, seconds):
    """Both are usual in Airflow."""
    assert WatchingOperator(task_id="t", timeout=given).timeout_s == seconds


def test_the_end_of_a_task_is_noted_and_nothing_more():
    """The signal may have interrupted a conversation with Airflow, so that nobody can be asked now."""
    operator = WatchingOperator(task_id="t")
    assert not operator.is_stopped
    operator.on_kill()
    assert operator.is_stopped
