"""The faults that the dummy server plays, from a JSON list of rules. Pure, but for counting what has been played.

Receives: the text of each request.        Hands on: the rule that applies to it, if any.
Invariant: the first rule that matches applies; counts are per rule, so a script plays the same on every run of the same requests.

::

    [{"match": "doc 7", "action": "status", "status": 429, "retry_after": "1", "first": 2},
     {"every": 100, "action": "drop"}, {"share": 0.01, "action": "shape", "shape": "null_content"}]
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Literal

import msgspec

__all__ = ["SHAPES", "FaultRule", "FaultScript", "load_script"]

_CHAT = b'{"id":"x","object":"chat.completion","choices":[%b],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
_MESSAGE = b'{"index":0,"message":{"role":"assistant",%b},"finish_reason":%b}'

SHAPES: dict[str, bytes] = {
    "null_content": _CHAT % (_MESSAGE % (b'"content":null', b'"stop"')),
    "reasoning_only": _CHAT % (_MESSAGE % (b'"content":null,"reasoning":"I think"', b'"length"')),
    "reasoning_content": _CHAT % (_MESSAGE % (b'"content":"yes","reasoning_content":"I think"', b'"stop"')),
    "tool_calls": _CHAT
    % (
        _MESSAGE
        % (b'"content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f"}}]', b'"tool_calls"')
    ),
    "null_finish_reason": _CHAT % (_MESSAGE % (b'"content":"yes"', b"null")),
    "no_finish_reason": _CHAT % b'{"index":0,"message":{"role":"assistant","content":"yes"}}',
    "null_message": _CHAT % b'{"index":0,"message":null,"finish_reason":"stop"}',
    "empty_choices": _CHAT % b"",
    "no_choices": b'{"id":"x","object":"chat.completion"}',
    "no_usage": b'{"choices":[%b]}' % (_MESSAGE % (b'"content":"yes"', b'"stop"')),
    "null_usage": b'{"usage":null,"choices":[%b]}' % (_MESSAGE % (b'"content":"yes"', b'"stop"')),
    "nan": _CHAT
    % b'{"index":0,"message":{"role":"assistant","content":"yes"},"logprobs":{"content":[{"logprob":NaN},{"logprob":-Infinity}]}}',
    "surrogate": _CHAT % (_MESSAGE % (b'"content":"\\ud83d"', b'"stop"')),
    "html": b"<html><body>Bad gateway</body></html>",
    "empty_body": b"",
    "list": b"[1, 2]",
    "error_in_200": b'{"error":{"message":"overloaded","code":503}}',
    "huge": _CHAT % (_MESSAGE % (b'"content":"' + b"word " * 1_000_000 + b'"', b'"stop"')),
}
"""Bodies of a 200 that are odd, by name."""


class FaultRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When to play what. A rule without a condition matches every request; all given conditions must hold.

    Attributes:
        match: text that occurs in the prompt.
        every: each so-manieth request that gets as far as this rule.
        first: only the first so many requests of each prompt.
        times: only so many requests in all.
        share: this share of the prompts, chosen by their hash.
        action: what happens. "status" answers ``status`` with ``body`` and ``retry_after``; "shape" answers ``shape``; "hang" never
            answers; "slow" answers after ``seconds``; "drop" closes without an answer; "cut" and "cut_chunked" close in the middle of
            one; "die" ends the server, after ``seconds``, with exit code ``status``.
    """

    action: Literal["status", "shape", "hang", "slow", "drop", "cut", "cut_chunked", "die"]
    match: str | None = None
    every: int | None = None
    first: int | None = None
    times: int | None = None
    share: float | None = None
    status: int = 500
    retry_after: str | None = None
    body: str = '{"error":{"message":"scripted"}}'
    shape: str = "null_content"
    seconds: float = 0.0


class FaultScript:
    """Rules, and how often each was asked and played."""

    def __init__(self, rules: list[FaultRule]) -> None:
        for rule in rules:
            if rule.shape not in SHAPES:
                raise ValueError(f"no shape {rule.shape!r}; known are {', '.join(SHAPES)}")
        self._rules = rules
        self._asked: Counter[int] = Counter()
        self._played: Counter[int] = Counter()
        self._seen: Counter[tuple[int, str]] = Counter()

    def choose(self, prompt: str) -> FaultRule | None:
        """The rule that applies to one more request with this prompt."""
        for index, rule in enumerate(self._rules):
            if self._applies(index, rule, prompt):
                self._played[index] += 1
                return rule
        return None

    def _applies(self, index: int, rule: FaultRule, prompt: str) -> bool:
        if rule.match is not None and rule.match not in prompt:
            return False
        digest = hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=8).digest()
        if rule.share is not None and int.from_bytes(digest) >= rule.share * 2**64:
            return False
        self._asked[index] += 1
        if rule.every is not None and self._asked[index] % rule.every:
            return False
        if rule.first is not None:
            key = (index, digest.hex())
            self._seen[key] += 1
            if self._seen[key] > rule.first:
                return False
        return rule.times is None or self._played[index] < rule.times


def load_script(text: str) -> FaultScript:
    """Read a script.

    Raises:
        ValueError: it is not a list of rules, or a shape is unknown.
    """
    return FaultScript(msgspec.json.decode(text, type=list[FaultRule]))
