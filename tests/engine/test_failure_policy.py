"""When failures end the job."""

import pytest

from airflow_provider_rollout.engine.config import FailureBudget
from airflow_provider_rollout.engine.exceptions import FailureBudgetError
from airflow_provider_rollout.engine.failure_policy import FailureKeeper


def fail(keeper, times, cause="BadRequestError 400"):
    for _ in range(times):
        keeper.add("failed", [(cause, "too long")], key="d1")


def test_failures_in_a_row_end_the_job_with_their_causes():
    """All that follows fails too, so it is not tried."""
    keeper = FailureKeeper(FailureBudget(max_consecutive_failures=3))
    fail(keeper, 2)
    keeper.add("written", [], key="d0")
    fail(keeper, 2)
    with pytest.raises(
        FailureBudgetError, match=r"3 documents failed in a row.*BadRequestError 400: 5 \(as document d1: too long\)"
    ):
        fail(keeper, 1)


def test_one_failure_over_the_number_ends_the_job():
    """The budget itself may be spent."""
    keeper = FailureKeeper(FailureBudget(max_failed=2))
    fail(keeper, 2)
    with pytest.raises(FailureBudgetError, match="3 documents failed"):
        fail(keeper, 1)


def test_a_share_is_measured_from_a_hundred_documents_on_and_at_the_end():
    """The first document that fails is not 100 %."""
    keeper = FailureKeeper(FailureBudget(max_failed_share=0.1, max_consecutive_failures=None))
    fail(keeper, 99)
    with pytest.raises(FailureBudgetError, match="100 of 100"):
        fail(keeper, 1)
    few = FailureKeeper(FailureBudget(max_failed_share=0.1))
    fail(few, 1)
    with pytest.raises(FailureBudgetError, match="1 of 1"):
        few.check_share()


def test_failures_of_earlier_attempts_count():
    """A resume does not renew the budget."""
    keeper = FailureKeeper(FailureBudget(max_failed=10))
    keeper.resume(ended=100, failed=10, causes={"BadRequestError 400": 10})
    with pytest.raises(FailureBudgetError):
        fail(keeper, 1)
