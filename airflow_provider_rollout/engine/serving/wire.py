"""What goes over the wire: a payload becomes a request, a body becomes an InferenceResult. Pure.

Receives: OpenAI-style payloads; bodies of any shape.        Hands on: bytes; results or our errors.
Invariants: the payload is never edited. No error holds a prompt or a key: text of the server that repeats the payload is cut out.
A body that no strict reader takes (NaN, lone surrogates) is read all the same and made strict.
Source: OpenAI API reference, chat completions and completions (read 2026-11-29); answers of vLLM 0.32.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    InferenceError,
    MalformedResponseError,
    RequestRejectedError,
)
from airflow_provider_rollout.engine.result import InferenceResult
from airflow_provider_rollout.engine.serving.retry import is_retryable_status

__all__ = ["WireRequest", "another_sample", "encode_request", "read_answer", "refusal"]

CHAT_PATH = "/chat/completions"
COMPLETIONS_PATH = "/completions"

MESSAGE_CHARS = 300  # of a server's error text; enough for vLLM's longest refusal
_ECHO_CHARS = 16  # this many characters in common with the prompt are an echo of it
_READ_CHARS = 4000  # of an error body that are looked at
_SECRET_FIELDS = ("messages", "prompt", "suffix", "input", "tools", "documents")


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request, encoded once for all its attempts.

    Attributes:
        path: below the API's base, "/chat/completions" or "/completions".
        body: JSON.
        payload: what it was made from; read only to keep its text out of error messages.
    """

    path: str
    body: bytes
    payload: Mapping[str, Any]

    @property
    def model(self) -> Any:
        """The model asked for."""
        return self.payload.get("model")


def encode_request(payload: Mapping[str, Any], *, use_chat: bool) -> WireRequest:
    """Encode a payload. Streaming is turned off, for the result is one record.

    Args:
        payload: with ``messages`` (chat) or ``prompt`` (completions).
        use_chat: decides where the payload does not.

    Raises:
        BadRequestError: the payload holds something that has no JSON form.
    """
    if "messages" in payload:
        path = CHAT_PATH
    elif "prompt" in payload:
        path = COMPLETIONS_PATH
    else:
        path = CHAT_PATH if use_chat else COMPLETIONS_PATH
    content = {**payload, "stream": False} if payload.get("stream") else payload
    try:
        return WireRequest(path, strict_json.dumps(content), payload)
    except (TypeError, RecursionError) as error:
        raise BadRequestError(f"the payload is not JSON: {error}", attempts=0) from None


def another_sample(payload: Mapping[str, Any], attempts: int) -> Mapping[str, Any] | None:
    """The payload that asks for a sample other than those of the attempts before; None where there is none to be had.

    Without a seed that is the same payload. With one, the next seed: the same would give the same answer again. Greedy sampling has one.
    """
    if payload.get("temperature") == 0:
        return None
    seed = payload.get("seed")
    return {**payload, "seed": seed + attempts} if type(seed) is int else payload


def read_answer(data: bytes) -> InferenceResult:
    """Read the body of a 200.

    Raises:
        MalformedResponseError: it is not a completion.
        RequestRejectedError: it holds an error with a retryable status, as gateways send it.
        BadRequestError: it holds an error with another status.
    """
    answer = _decode(data)
    if not isinstance(answer, dict):
        raise MalformedResponseError(f"answered 200 with {_kind(answer)} instead of a completion", status=200)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        error = answer.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and 400 <= code < 600:
            kind = RequestRejectedError if is_retryable_status(code) else BadRequestError
            raise kind(f"answered 200 with an error of status {code} in the body", status=code)
        raise MalformedResponseError("answered 200 without choices", status=200)
    usage = answer.get("usage")
    first = _read_choice(choices[0], usage if isinstance(usage, dict) else {})
    if len(choices) == 1:
        return first
    return InferenceResult(
        first.text,
        first.finish_reason,
        first.usage,
        first.reasoning,
        first.tool_calls,
        first.logprobs,
        [_read_choice(choice, {}) for choice in choices[1:]],
    )


def refusal(status: int, data: bytes, request: WireRequest, retry_after_s: float | None) -> InferenceError:
    """The error for a status other than 200; its message holds the server's words, less what repeats the payload."""
    words = _without_echo(_error_text(data), request.payload)
    message = f"POST {request.path} answered {status}" + (f": {words}" if words else "")
    if is_retryable_status(status):
        return RequestRejectedError(message, status=status, retry_after_s=retry_after_s)
    return BadRequestError(message, status=status)


def _decode(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        loose = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None)
        return orjson.loads(strict_json.dumps(loose))
    except (ValueError, RecursionError, TypeError):
        kind = "an empty body" if not data.strip() else f"{len(data)} bytes that are not JSON"
        raise MalformedResponseError(f"answered 200 with {kind}", status=200) from None


def _read_choice(choice: Any, usage: dict[str, Any]) -> InferenceResult:
    if not isinstance(choice, dict):
        raise MalformedResponseError(f"answered 200 with {_kind(choice)} as a choice", status=200)
    finish_reason = choice.get("finish_reason")
    if not isinstance(finish_reason, str):
        finish_reason = None
    message = choice.get("message")
    if isinstance(message, dict):
        return InferenceResult(
            _text(message.get("content")),
            finish_reason,
            usage,
            _text(message.get("reasoning") or message.get("reasoning_content")),
            _tool_calls(message),
            choice.get("logprobs"),
        )
    if isinstance(choice.get("text"), str):
        return InferenceResult(choice["text"], finish_reason, usage, "", [], choice.get("logprobs"))
    raise MalformedResponseError("answered 200 with a choice that has neither message nor text", status=200)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _tool_calls(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        return calls
    function = message.get("function_call")  # what tool_calls was before 2023-11
    return [{"type": "function", "function": function}] if isinstance(function, dict) else []


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _error_text(data: bytes) -> str:
    text = data[:_READ_CHARS].decode("utf-8", "replace")
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(content, dict) and content.get(key):
            content = content[key]
    return (content if isinstance(content, str) else orjson.dumps(content).decode())[:_READ_CHARS]


def _without_echo(text: str, payload: Mapping[str, Any]) -> str:
    """Cut what repeats the payload, runs of white space, and all beyond MESSAGE_CHARS."""
    secret = "\n".join(string for name in _SECRET_FIELDS for string in _strings(payload.get(name)))
    for string in secret.split("\n"):
        if len(string) >= 4:
            text = text.replace(string, "[…]")
    kept: list[str] = []
    at = 0
    while at < len(text) and len(kept) <= MESSAGE_CHARS:
        end = at + _ECHO_CHARS
        if end <= len(text) and text[at:end] in secret:
            while end < len(text) and text[at : end + 1] in secret:
                end += 1
            kept.append("[…]")
            at = end
        else:
            kept.append(text[at])
            at += 1
    words = " ".join("".join(kept).split())
    return words if len(words) <= MESSAGE_CHARS else words[: MESSAGE_CHARS - 1] + "…"


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending.extend(value for key, value in item.items() if key not in {"role", "type"})
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
