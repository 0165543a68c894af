"""The cache key, and what is kept under it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import BadRequestError, EngineFaultError, RequestRejectedError
from airflow_provider_rollout.engine.generate import DocumentUsage, GenerateRoom
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.result import InferenceResult

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Cache(dict):
    """The request cache's two methods over a dict."""

    def get(self, key):
        return super().get(key)

    def put(self, chunk_index, number, key, value):
        self[key] = value


class Model:
    """Counts what it is asked."""

    def __init__(self, error=None):
        self.asked = []
        self.error = error

    async def generate(self, payload):
        self.asked.append(payload)
        if self.error is not None:
            raise self.error
        return InferenceResult(f"answer {len(self.asked)}", "stop", {"completion_tokens": 1})


def calls(cache, model, *, document_id="d", number=0, occurrence=0, rollout_index=0, retry_failed=False, **changes):
    config = InferenceConfig(**{"server_type": "dummy", "model_name_or_path": "m", **changes})
    room = GenerateRoom(config, cache, model, MetricsKeeper(), retry_failed)
    document = NumberedDocument(Document("", document_id), number, number // 10, occurrence, Position())
    return room.for_rollout(document, rollout_index, DocumentUsage())


async def test_a_replay_asks_nothing_and_gives_the_same_answers():
    """Two identical calls are two samples, in the same order again."""
    cache, model = Cache(), Model()
    generate = calls(cache, model)
    live = [await generate({"prompt": "x"}), await generate({"prompt": "x"})]
    again = calls(cache, model)
    assert [await again({"prompt": "x"}), await again({"prompt": "x"})] == live
    assert [result.text for result in live] == ["answer 1", "answer 2"]
    assert len(model.asked) == 2
    assert again.usage.completion_tokens == 2
    assert again.room.metrics.totals["cache_hits"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model_name_or_path": "other"},
        {"default_generation_params": {"temperature": 0.5}},
        {"default_generation_params": {"max_tokens": 5}},
        {"default_generation_params": {"seed": 1}},
        {"default_generation_params": {"stop": ["\n"]}},
        {"default_generation_params": {"response_format": {"type": "json_object"}}},
        {"default_generation_params": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"document_id": "other"},
        {"number": 10},
        {"occurrence": 1},
        {"rollout_index": 1},
    ],
)
async def test_what_changes_the_answer_changes_the_key(change):
    """Model, parameters, document, occurrence, rollout."""
    cache, model = Cache(), Model()
    await calls(cache, model)({"prompt": "x"})
    await calls(cache, model, **change)({"prompt": "x"})
    assert len(model.asked) == 2


@given(st.dictionaries(st.text(), JSON, max_size=4))
async def test_any_payload_is_found_again_and_left_as_it_is(payload):
    """Look-up and store agree, whatever is in it; the user may reuse and change it."""
    cache, model = Cache(), Model()
    before = repr(payload)
    generate = calls(cache, model)
    await generate(payload)
    assert repr(payload) == before
    payload["changed"] = True
    await generate(payload)
    del payload["changed"]
    again = calls(cache, model)
    await again(payload)
    assert len(model.asked) == 2


async def test_the_payload_goes_before_the_defaults():
    """Defaults fill in what is missing, and the model is named."""
    model = Model()
    await calls(Cache(), model, default_generation_params={"temperature": 0, "max_tokens": 5})(
        {"prompt": "x", "max_tokens": 9}
    )
    assert model.asked == [{"temperature": 0, "max_tokens": 9, "prompt": "x", "model": "m"}]


async def test_a_refusal_for_good_is_kept_and_asked_again_on_request_only():
    """A permanent 4xx costs one request; other failures are not kept."""
    cache, model = Cache(), Model(BadRequestError("too long", status=400))
    for _ in range(2):
        with pytest.raises(BadRequestError, match="too long"):
            await calls(cache, model)({"prompt": "x"})
    assert len(model.asked) == 1
    model.error = None
    assert (await calls(cache, model, retry_failed=True)({"prompt": "x"})).text == "answer 2"
    model.error = RequestRejectedError("busy", status=503)
    for _ in range(2):
        with pytest.raises(RequestRejectedError):
            await calls(cache, model)({"prompt": "y"})
    assert len(model.asked) == 4


async def test_a_defect_behind_generate_is_not_the_rollouts_failure():
    """What is no InferenceError ends the job and names the document; a payload without a JSON form is the rollout's own."""
    with pytest.raises(
        EngineFaultError, match="TypeError inside a generate call of document 'd': no such thing; this is a defect"
    ):
        await calls(Cache(), Model(TypeError("no such thing")))({"prompt": "x"})
    with pytest.raises(TypeError):
        await calls(Cache(), Model())({"prompt": object()})
