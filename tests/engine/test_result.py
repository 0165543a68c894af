"""Rules of a document's outcome."""

import msgspec
import pytest

from airflow_provider_rollout.engine.result import DocumentResult, Failure, InferenceResult, RolloutResult

GOOD = RolloutResult(0, value={"answer": 1})
EMPTY = RolloutResult(1, value="")
DROPPED = RolloutResult(2)
FAILED = RolloutResult(3, failure=Failure("BadRequestError", "no", status=400))


@pytest.mark.parametrize(
    ("rollouts", "outcome"),
    [
        ([GOOD], "written"),
        ([GOOD, FAILED, DROPPED], "written"),
        ([EMPTY], "written"),
        ([FAILED], "failed"),
        ([FAILED, DROPPED], "failed"),
        ([DROPPED, DROPPED], "dropped"),
        ([], "dropped"),
    ],
)
def test_a_document_has_exactly_one_outcome(rollouts, outcome):
    """One result is enough to be written; a failure counts only where there is none."""
    assert DocumentResult(rollouts).outcome == outcome


def test_results_keep_the_order_of_the_rollouts():
    """Row for row the same, however the requests ended."""
    assert DocumentResult([GOOD, FAILED, EMPTY]).values == [{"answer": 1}, ""]
    assert DocumentResult([GOOD, FAILED, EMPTY]).failures == [FAILED]


def test_an_answer_survives_its_stored_form():
    """What the request cache gives back is what the server said."""
    answer = InferenceResult(
        "text", None, {"prompt_tokens": 1}, "why", [{"id": 1}], {"content": [None]}, [InferenceResult("b", "stop", {})]
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=InferenceResult) == answer


def test_an_answer_has_the_fields_of_datatrove_first():
    """``InferenceResult(text, finish_reason, usage)`` is what a rollout function written for datatrove builds."""
    assert InferenceResult("t", "stop", {}).reasoning == ""
