"""What comes back: from one generate call, from one rollout, for one document.

Receives: decoded answers and what rollout functions return.        Hands on: frozen records that the cache and the output store.
Invariant: a document has exactly one outcome. It is written when at least one rollout gave a result, failed when none did and one
failed, dropped when all returned None. Rollouts that failed beside good ones are recorded in the dead letters all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

__all__ = ["DocumentResult", "Failure", "Generate", "InferenceResult", "Outcome", "Rollout", "RolloutResult"]

Outcome = Literal["written", "failed", "dropped"]


class InferenceResult(msgspec.Struct, frozen=True, omit_defaults=False):
    """The answer to one generate call.

    Attributes:
        text: the generated text; "" when the model only reasoned or called tools.
        finish_reason: "stop", "length", "tool_calls" …, or None when the server gave none.
        usage: token counts as the server gave them: ``prompt_tokens``, ``completion_tokens`` …; {} when it gave none.
        reasoning: the reasoning text, from ``reasoning`` or ``reasoning_content``.
        tool_calls: as the server gave them.
        logprobs: as the server gave them; NaN and infinities are None.
        choices: the further choices when ``n`` > 1, each without usage.
    """

    text: str
    finish_reason: str | None
    usage: dict[str, Any]
    reasoning: str = ""
    tool_calls: list[Any] = msgspec.field(default_factory=list)
    logprobs: Any = None
    choices: list[InferenceResult] = msgspec.field(default_factory=list)


class Failure(msgspec.Struct, frozen=True):
    """Why a rollout has no result. Holds no prompt and no secret.

    Attributes:
        cause: the class of the error.
        message: its message, bounded in length.
        status: HTTP status, if the server answered.
        attempts: how often the last request was sent.
        permanent: False when a later attempt might succeed.
        payload_sha256: SHA-256, as hex, of the final payload (defaults and model filled in; JSON with sorted keys) of the request
            that failed; None when no request did. It tells equal payloads from different ones without holding any of their text.
    """

    cause: str
    message: str
    status: int | None = None
    attempts: int = 1
    permanent: bool = True
    payload_sha256: str | None = None


class RolloutResult(msgspec.Struct, frozen=True):
    """One execution of the rollout function; ``value`` is JSON, None when it was dropped or failed."""

    rollout_index: int
    value: Any = None
    failure: Failure | None = None


class DocumentResult(msgspec.Struct, frozen=True):
    """All rollouts of one document, in the order of their index."""

    rollouts: list[RolloutResult]

    @property
    def values(self) -> list[Any]:
        """The results, without dropped and failed rollouts."""
        return [rollout.value for rollout in self.rollouts if rollout.value is not None]

    @property
    def failures(self) -> list[RolloutResult]:
        """The rollouts that failed."""
        return [rollout for rollout in self.rollouts if rollout.failure is not None]

    @property
    def outcome(self) -> Outcome:
        """How the document ended."""
        if self.values:
            return "written"
        return "failed" if self.failures else "dropped"


class Generate(Protocol):
    """The callable that a rollout function receives: an OpenAI-style payload in, an InferenceResult out."""

    def __call__(self, payload: Mapping[str, Any]) -> Awaitable[InferenceResult]:
        """Ask the model.

        Raises:
            InferenceError: the request ended without a result; let it pass, and the rollout is recorded as failed.
        """


Rollout = Callable[..., Awaitable[Any]]
"""The user's function: ``async def rollout(document, generate, **shared_context)``.

It returns an InferenceResult, any JSON value, a list of them, or None to drop the rollout. Which keyword arguments it names is its own
affair, so the type says no more.
"""
