"""How a rollout task can fail, for Airflow."""

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_rollout import exceptions


@pytest.mark.parametrize("name", ["RolloutConfigError", "RolloutCancelled"])
def test_what_a_retry_cannot_help_is_not_retried(name):
    """Airflow never retries an AirflowFailException, whatever ``retries`` says."""
    assert issubclass(getattr(exceptions, name), AirflowFailException)


@pytest.mark.parametrize("name", ["RolloutFailed", "RolloutJobLost", "RolloutTimeout"])
def test_what_a_retry_resumes_may_be_retried(name):
    """The job's work is kept, so the task's own ``retries`` decide."""
    kind = getattr(exceptions, name)
    assert issubclass(kind, AirflowException)
    assert not issubclass(kind, AirflowFailException)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (exceptions.RolloutJobLost("x"), RetryAction.RETRY),
        (exceptions.RolloutTimeout("x"), RetryAction.FAIL),
        (exceptions.RolloutFailed("x"), RetryAction.DEFAULT),
        (ValueError("x"), RetryAction.DEFAULT),
    ],
)
def test_the_retry_policy_tells_a_lost_job_from_a_late_one(error, action):
    """A lost job is worth another try soon; a deadline that has passed is not."""
    assert exceptions.ROLLOUT_RETRY_POLICY.evaluate(error, 1, 3).action is action


def test_the_retry_policy_survives_the_storing_of_a_dag():
    """Airflow stores a policy with the DAG."""
    policy = exceptions.ROLLOUT_RETRY_POLICY
    again = type(policy).deserialize(policy.serialize())
    assert again.evaluate(exceptions.RolloutTimeout("x"), 1, 3).action is RetryAction.FAIL
