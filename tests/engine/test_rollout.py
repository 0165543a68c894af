"""What a rollout function may do, and what becomes of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import BadRequestError, InferenceError, ServerExitedError
from airflow_provider_rollout.engine.generate import GenerateRoom
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.result import InferenceResult
from airflow_provider_rollout.engine.rollout import prompt_rollout, run_document


class Nothing:
    """A cache that has nothing and keeps nothing."""

    def get(self, key):
        return None

    def put(self, chunk_index, number, key, value):
        """Forget it."""


class Answers:
    """A model that answers from a table; an exception in it is raised."""

    def __init__(self, answer):
        self.answer = answer

    async def generate(self, payload):
        if isinstance(self.answer, Exception):
            raise self.answer
        return InferenceResult(self.answer, "stop", {"prompt_tokens": 3, "completion_tokens": 2})


def numbered(**fields):
    return NumberedDocument(Document(**{"text": "hello", "id": "7", **fields}), 7, 0, 0, Position(0, 8))


async def run(rollout, answer="yes", rollouts=1, document=None, **context):
    config = InferenceConfig(server_type="dummy", model_name_or_path="m", rollouts_per_document=rollouts)
    room = GenerateRoom(config, Nothing(), Answers(answer), MetricsKeeper())
    return await run_document(document or numbered(), rollout, room, context)


async def ask(document, generate):
    return await generate({"prompt": document.text})


async def test_a_result_is_kept_as_json_with_what_it_has_cost():
    """An InferenceResult becomes an object; empty optional fields are left out."""
    finished = await run(ask, rollouts=2)
    assert [json.loads(bytes(value)) for value in finished.values] == [
        {"text": "yes", "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    ] * 2
    assert (finished.outcome, finished.requests, finished.prompt_tokens, finished.completion_tokens) == (
        "written",
        2,
        6,
        4,
    )


async def test_what_the_server_refuses_fails_the_rollout_with_its_status():
    """The class and the status name the cause."""
    finished = await run(ask, BadRequestError("too long", status=400))
    assert finished.outcome == "failed"
    (rollout,) = finished.failures
    assert (rollout.failure.cause, rollout.failure.status) == ("BadRequestError", 400)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_ends_the_job_passes_through_the_users_function(wrapped):
    """Also out of the user's own task group."""

    async def rollout(document, generate):
        if not wrapped:
            return await ask(document, generate)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask(document, generate))
        return asking.result()

    with pytest.raises(ServerExitedError):
        await run(rollout, ServerExitedError("gone"))


async def test_a_cancellation_of_the_functions_own_is_its_failure():
    """Only the job's cancellation is one."""

    async def rollout(document, generate):
        raise asyncio.CancelledError

    assert (await run(rollout)).outcome == "failed"
    running = asyncio.create_task(run(lambda document, generate: asyncio.sleep(60)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_long_message_is_cut():
    """A prompt in an exception does not fill the dead letters."""

    async def rollout(document, generate):
        raise ValueError("x" * 10_000)

    finished = await run(rollout)
    assert len(finished.failures[0].failure.message) < 700
    assert "test_rollout.py" in finished.failures[0].failure.message


async def test_metadata_without_a_json_form_fails_its_document():
    """Nothing can fail later, when the chunk is written."""

    async def rollout(document, generate):
        document.metadata["handle"] = object()
        return "fine"

    finished = await run(rollout)
    assert (finished.outcome, finished.values) == ("failed", [])
    assert "metadata" in finished.failures[0].failure.message


async def test_the_shared_context_comes_as_keywords():
    """As with datatrove."""

    async def rollout(document, generate, *, tokenizer, **others):
        return [tokenizer, others]

    finished = await run(rollout, tokenizer="t", pool="p")
    assert json.loads(bytes(finished.values[0])) == ["t", {"pool": "p"}]


async def test_a_prompt_rollout_needs_no_code():
    """A missing field fails the document, not the job."""
    rollout = prompt_rollout("{text} {topic}", system_prompt=None, use_chat=True)
    assert (await run(rollout, document=numbered(metadata={"topic": "t"}))).outcome == "written"
    finished = await run(rollout)
    assert "topic" in finished.failures[0].failure.message


async def test_an_inference_error_may_be_handled_by_the_function():
    """A rollout may fall back."""

    async def rollout(document, generate):
        try:
            return await ask(document, generate)
        except InferenceError:
            return "fallback"

    finished = await run(rollout, BadRequestError("no", status=400))
    assert bytes(finished.values[0]) == b'"fallback"'
