"""A dummy that can be trusted."""

from __future__ import annotations

import asyncio
import hashlib
import json

import aiohttp
import pytest
from servers.model_server import chat, run_dummy

from airflow_provider_rollout.engine.serving.dummy_app import answer_words


async def call(url, path, payload=None, **headers):
    """Status and body."""
    async with aiohttp.ClientSession() as session:
        method = session.get if payload is None else session.post
        values = {} if payload is None else {"data": json.dumps(payload)}
        async with method(url + path, headers=headers, **values) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text


async def test_one_payload_has_one_answer():
    """Whatever came before; another seed gives another one."""
    async with run_dummy() as first, run_dummy() as second:
        path = "/v1/chat/completions"
        one = await call(first.url, path, chat("x", seed=1))
        await call(second.url, path, chat("other"))
        assert await call(second.url, path, chat("x", seed=1)) == one
        assert await call(second.url, path, chat("x", seed=2)) != one


@pytest.mark.parametrize(("limit", "finish_reason"), [(1, "length"), (1000, "stop")])
def test_max_tokens_cuts_and_words_are_tokens(limit, finish_reason):
    """An answer that ends by itself says so."""
    words, reason = answer_words({"prompt": "x", "max_tokens": limit}, 0)
    assert len(words) <= limit
    assert reason == finish_reason


async def test_tokens_are_counted_honestly_for_n_answers():
    """In the answer, in /metrics and in /stats alike."""
    async with run_dummy() as dummy:
        _, answer = await call(dummy.url, "/v1/completions", {"prompt": "one two three", "n": 3, "max_tokens": 4})
        assert [len(choice["text"].split()) for choice in answer["choices"]] == [4, 4, 4]
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
        _, metrics = await call(dummy.url, "/metrics")
        assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 12\n' in metrics
        _, stats = await call(dummy.url, "/stats")
        assert stats["generation_tokens"] == 12
        assert stats["by_prompt"] == {hashlib.sha256(b"one two three").hexdigest()[:16]: 1}


async def test_it_refuses_what_vllm_refuses(monkeypatch):
    """Key, path, method, model, JSON, length; /health and /metrics are open."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    async with run_dummy(max_model_len=5) as dummy:
        path, key = "/v1/chat/completions", {"Authorization": "Bearer secret"}
        assert await call(dummy.url, path, chat("x")) == (401, {"error": "Unauthorized"})
        assert (await call(dummy.url, "/v1/models"))[0] == 401
        assert (await call(dummy.url, "/health"))[0] == 200
        assert (await call(dummy.url, "/metrics"))[0] == 200
        assert (await call(dummy.url, path, chat("x"), **key))[0] == 200
        assert (await call(dummy.url, path, **key))[0] == 405
        assert (await call(dummy.url, "/v1/nope", **key))[0] == 404
        assert (await call(dummy.url, path, {**chat("x"), "model": "y"}, **key))[0] == 404
        assert (await call(dummy.url, path, chat("a b c d e f"), **key))[0] == 400
        assert (await call(dummy.url, path, ["no object"], **key))[0] == 400


async def test_requests_in_flight_are_counted_and_refused_beyond_a_limit():
    """With the status that was set."""
    async with run_dummy(max_in_flight=2, latency_ms=100, refuse_status=429) as dummy:
        answers = await asyncio.gather(*(call(dummy.url, "/v1/completions", {"prompt": str(n)}) for n in range(5)))
        assert sorted(status for status, _ in answers) == [200, 200, 429, 429, 429]
        assert dummy.counts["status_429"] == 3


async def test_every_request_is_logged_where_asked(tmp_path):
    """One line each, across restarts."""
    path = tmp_path / "requests"
    for _ in range(2):
        async with run_dummy(log_requests=path) as dummy:
            await call(dummy.url, "/v1/completions", {"prompt": "x"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200]
    assert {line["prompt"] for line in lines} == {hashlib.sha256(b"x").hexdigest()[:16]}
