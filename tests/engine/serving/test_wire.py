"""Payloads into requests, bodies of any shape into results."""

from __future__ import annotations

import json

import pytest
from servers.model_server import chat

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    InferenceError,
    MalformedResponseError,
    RequestRejectedError,
)
from airflow_provider_rollout.engine.serving.faults import SHAPES
from airflow_provider_rollout.engine.serving.wire import encode_request, read_answer, refusal


@pytest.mark.parametrize(
    ("shape", "text", "reasoning", "finish_reason"),
    [
        ("null_content", "", "", "stop"),
        ("reasoning_only", "", "I think", "length"),
        ("reasoning_content", "yes", "I think", "stop"),
        ("null_finish_reason", "yes", "", None),
        ("no_finish_reason", "yes", "", None),
        ("no_usage", "yes", "", "stop"),
        ("null_usage", "yes", "", "stop"),
        ("nan", "yes", "", None),
        ("surrogate", "\ufffd", "", "stop"),
    ],
)
def test_an_odd_answer_is_still_an_answer(shape, text, reasoning, finish_reason):
    """What the model said is kept, whatever is missing around it."""
    result = read_answer(SHAPES[shape])
    assert (result.text, result.reasoning, result.finish_reason) == (text, reasoning, finish_reason)
    assert isinstance(result.usage, dict)
    strict_json.dumps(result)


@pytest.mark.parametrize("shape", ["null_message", "empty_choices", "no_choices", "html", "empty_body", "list"])
def test_a_200_without_an_answer_is_malformed_and_so_retried(shape):
    """A gateway's page or half an object is no reason to end a job."""
    with pytest.raises(MalformedResponseError):
        read_answer(SHAPES[shape])


@pytest.mark.parametrize(
    "body",
    [b"null", b"3", b'"x"', b'{"choices":"x"}', b'{"choices":[7]}', b'{"choices":[null]}', b"[" * 100_000, b"\xff\xfe"],
)
def test_rubbish_of_any_type_is_malformed(body):
    """No shape of a body escapes as a TypeError or RecursionError."""
    with pytest.raises(MalformedResponseError):
        read_answer(body)


def test_tool_calls_without_content_are_kept():
    """The row shows what the model wanted to call."""
    result = read_answer(SHAPES["tool_calls"])
    assert result.finish_reason == "tool_calls"
    assert result.tool_calls[0]["function"]["name"] == "f"


def test_nan_in_logprobs_becomes_null():
    """The output stays strict JSON."""
    assert read_answer(SHAPES["nan"]).logprobs == {"content": [{"logprob": None}, {"logprob": None}]}


def test_an_error_inside_a_200_keeps_its_status():
    """Some gateways answer so."""
    with pytest.raises(RequestRejectedError) as caught:
        read_answer(SHAPES["error_in_200"])
    assert caught.value.status == 503


def test_further_choices_follow_the_first():
    """n=3 gives one result with two more, usage once."""
    choices = [{"index": n, "message": {"content": f"t{n}"}, "finish_reason": "stop"} for n in range(3)]
    result = read_answer(json.dumps({"choices": choices, "usage": {"prompt_tokens": 1}}).encode())
    assert [result.text, *[choice.text for choice in result.choices]] == ["t0", "t1", "t2"]
    assert result.usage == {"prompt_tokens": 1}
    assert result.choices[0].usage == {}


def test_content_parts_are_joined():
    """Some servers answer with a list of parts."""
    body = {"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "x"}, {"text": "b"}]}}]}
    assert read_answer(json.dumps(body).encode()).text == "ab"


@pytest.mark.parametrize(
    ("payload", "use_chat", "path"),
    [
        ({"messages": []}, True, "/chat/completions"),
        ({"prompt": "x"}, False, "/completions"),
        ({"prompt": "x"}, True, "/completions"),
        ({"messages": []}, False, "/chat/completions"),
        ({}, True, "/chat/completions"),
        ({}, False, "/completions"),
    ],
)
def test_the_payload_chooses_the_path_and_use_chat_where_it_does_not(payload, use_chat, path):
    """A completions payload on the chat path could only be refused."""
    assert encode_request(payload, use_chat=use_chat).path == path


def test_the_payload_is_not_edited_and_streaming_is_off():
    """The caller may use its dict again."""
    payload = chat("x", stream=True)
    before = json.dumps(payload)
    assert json.loads(encode_request(payload, use_chat=True).body)["stream"] is False
    assert json.dumps(payload) == before


def test_a_lone_surrogate_and_a_huge_integer_can_be_sent():
    """Odd characters are no reason to refuse a document."""
    body = json.loads(encode_request(chat("a\ud83db", seed=2**70), use_chat=True).body)
    assert body["messages"][0]["content"] == "a\ufffdb"


def test_what_has_no_json_form_is_this_requests_own_fault():
    """The rollout fails, the job goes on."""
    with pytest.raises(BadRequestError, match="payload is not JSON"):
        encode_request(chat("x", seed=object()), use_chat=True)


def test_a_refusal_holds_the_servers_words_but_not_the_prompt():
    """vLLM's validation errors repeat the input."""
    prompt = "My secret is 4711, do not tell anybody about it. BadRequestError 503"
    request = encode_request(chat(prompt), use_chat=True)
    body = json.dumps({"error": {"message": f"1 validation error: input: {prompt!r} is too long", "code": 400}})
    error = refusal(400, body.encode(), request, None)
    assert isinstance(error, BadRequestError)
    assert error.status == 400
    assert "validation error" in str(error)
    assert "secret" not in str(error)
    part = refusal(400, f"your prompt {prompt[3:30]}... is bad".encode(), request, None)
    assert "secret is" not in str(part)
    assert "is bad" in str(part)


@pytest.mark.parametrize(
    "body", [b"", b"\xff" * 9000, b"<html>" + b"x" * 10_000_000, b'{"error":"Unauthorized"}', b'{"error":{"a":[1]}}']
)
def test_a_refusal_is_bounded_whatever_the_body(body):
    """Megabytes of error page do not get into a log."""
    error = refusal(502, body, encode_request(chat("x"), use_chat=True), 3.0)
    assert isinstance(error, RequestRejectedError)
    assert isinstance(error, InferenceError)
    assert len(str(error)) < 400
    assert error.retry_after_s == 3.0
