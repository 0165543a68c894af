"""The callable that a rollout function receives: cache, then server, then cache.

Receives: payloads from the user's function.        Hands on: InferenceResult, or the error that ends the rollout.
Invariants: the payload is copied and never edited. The cache key covers the final payload (defaults and model filled in), the document,
the rollout and how often the rollout has made this very call: two identical calls are two samples, live and on replay. A refusal for
good (4xx) is kept like an answer, so that a resume does not ask again, unless failed documents are to be retried.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.document import NumberedDocument
from airflow_provider_rollout.engine.exceptions import BadRequestError, EngineFaultError, InferenceError, RolloutError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.result import Failure, InferenceResult
from airflow_provider_rollout.engine.storage.request_cache import RequestCache

__all__ = ["Ask", "DocumentUsage", "GenerateRoom", "RolloutCalls"]

_ANSWER, _REFUSAL = b"A", b"R"


class Ask(Protocol):
    """What sends a final payload to a server: the dispatcher."""

    async def generate(self, payload: Mapping[str, Any]) -> InferenceResult:
        """Ask a server; raises InferenceError or ServerError."""


@dataclass(slots=True)
class DocumentUsage:
    """What the calls of one document have cost, cached or not."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, result: InferenceResult) -> None:
        """Count an answer."""
        self.requests += 1
        self.prompt_tokens += _tokens(result, "prompt_tokens")
        self.completion_tokens += _tokens(result, "completion_tokens")


@dataclass(frozen=True, slots=True)
class GenerateRoom:
    """What all calls share; `for_rollout` makes the callable of one rollout."""

    config: InferenceConfig
    cache: RequestCache
    ask: Ask
    metrics: MetricsKeeper
    retry_failed: bool = False

    def for_rollout(self, document: NumberedDocument, rollout_index: int, usage: DocumentUsage) -> RolloutCalls:
        """The callable for one rollout of one document."""
        return RolloutCalls(self, document, rollout_index, usage)


@dataclass(slots=True)
class RolloutCalls:
    """All generate calls of one rollout."""

    room: GenerateRoom
    document: NumberedDocument
    rollout_index: int
    usage: DocumentUsage
    _made: Counter[bytes] = field(default_factory=Counter)

    async def __call__(self, payload: Mapping[str, Any]) -> InferenceResult:
        """Ask the model.

        Args:
            payload: an OpenAI-style request, ``{"messages": [...]}`` or ``{"prompt": ...}``; what it leaves out comes from
                ``default_generation_params``.

        Raises:
            InferenceError: the request ended without a result.
            RolloutError: the job cannot go on.
        """
        final = self._final(payload)
        digest = hashlib.sha256(strict_json.dumps(final, sort_keys=True)).digest()
        try:
            return await self._ask(final, self._key(digest))
        except InferenceError as error:
            error.payload_sha256 = digest.hex()
            raise
        except RolloutError:
            raise
        except Exception as error:
            raise EngineFaultError(
                f"{type(error).__name__} inside a generate call of document {self.document.document.id!r}: {error}; "
                "this is a defect of airflow-provider-rollout, please report it with the traceback; what is done is kept"
            ) from error

    async def _ask(self, final: Mapping[str, Any], key: bytes) -> InferenceResult:
        cached = self.room.cache.get(key)
        if cached is not None and (cached[:1] == _ANSWER or not self.room.retry_failed):
            return self._replay(cached)
        try:
            result = await self.room.ask.generate(final)
        except BadRequestError as error:
            failure = Failure(cause=type(error).__name__, message=str(error), status=error.status)
            self._keep(key, _REFUSAL + msgspec.json.encode(failure))
            raise
        self._keep(key, _ANSWER + strict_json.dumps(result))
        self.usage.add(result)
        return result

    def _final(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        final = {**self.room.config.default_generation_params, **payload}
        final.setdefault("model", self.room.config.model_name_or_path)
        return final

    def _key(self, digest: bytes) -> bytes:
        ordinal = self._made[digest]
        self._made[digest] += 1
        numbered = self.document
        place = (
            f"{numbered.chunk_index}\0{numbered.occurrence}\0{self.rollout_index}\0{ordinal}\0{numbered.document.id}"
        )
        return hashlib.sha256(digest + place.encode("utf-8", "surrogatepass")).digest()

    def _keep(self, key: bytes, value: bytes) -> None:
        self.room.cache.put(self.document.chunk_index, self.document.number, key, value)

    def _replay(self, cached: bytes) -> InferenceResult:
        self.room.metrics.count("cache_hits")
        if cached[:1] == _REFUSAL:
            failure = msgspec.json.decode(cached[1:], type=Failure)
            raise BadRequestError(failure.message, status=failure.status, attempts=failure.attempts)
        result = msgspec.json.decode(cached[1:], type=InferenceResult)
        self.usage.add(result)
        return result


def _tokens(result: InferenceResult, name: str) -> int:
    count = result.usage.get(name)
    return count if isinstance(count, int) else 0
