"""All rollouts of one document.

Receives: a NumberedDocument and the rollout function.        Hands on: FinishedDocument, encoded and ready for cache and output.
Invariants: what the user's function raises is data: it fails its rollout and no other. What ends the job (a broken store, a server beyond
repair, a stop) passes through. A result that has no JSON form fails its rollout here, so that nothing can fail when a chunk is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    InferenceError,
    QuarantinedError,
    RolloutError,
)
from airflow_provider_rollout.engine.generate import DocumentUsage, GenerateRoom, RolloutCalls
from airflow_provider_rollout.engine.prompt import PromptTemplate
from airflow_provider_rollout.engine.result import (
    DocumentResult,
    Failure,
    Generate,
    InferenceResult,
    Outcome,
    Rollout,
    RolloutResult,
)

__all__ = ["FinishedDocument", "prompt_rollout", "run_document"]

_MESSAGE_CHARS = 500  # of a failure's message: enough to tell causes apart, too short to carry a prompt


class FinishedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One ended document, as it is kept until its chunk is written.

    Attributes:
        values: one JSON text per result.
        end: where the input goes on after it.
    """

    number: int
    key: str
    id: str
    text: str
    metadata: msgspec.Raw
    media: msgspec.Raw
    values: list[msgspec.Raw]
    failures: list[RolloutResult]
    outcome: Outcome
    requests: int
    prompt_tokens: int
    completion_tokens: int
    end: Position = Position()


async def run_document(
    numbered: NumberedDocument, rollout: Rollout, room: GenerateRoom, shared_context: Mapping[str, Any]
) -> FinishedDocument:
    """Run all rollouts of a document side by side.

    Raises:
        RolloutError: the job cannot go on; never for a failed rollout.
    """
    usage = DocumentUsage()
    calls = [room.for_rollout(numbered, index, usage) for index in range(room.config.rollouts_per_document)]
    if len(calls) == 1:
        results = [await _run_rollout(numbered.document, rollout, calls[0], shared_context)]
    else:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_run_rollout(numbered.document, rollout, generate, shared_context))
                for generate in calls
            ]
        results = [task.result() for task in tasks]
    return _finish(numbered, DocumentResult(results), usage)


async def _run_rollout(
    document: Document, rollout: Rollout, generate: RolloutCalls, shared_context: Mapping[str, Any]
) -> RolloutResult:
    rollout_index = generate.rollout_index
    try:
        value = await rollout(document, generate, **shared_context)
        return RolloutResult(rollout_index, _as_json(value))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return RolloutResult(rollout_index, failure=_failure(error))
    except Exception as error:
        fatal = _fatal(error)
        if fatal is not None:
            raise fatal from error
        return RolloutResult(rollout_index, failure=_failure(error))


def _as_json(value: Any) -> Any:
    """The JSON text of a rollout's value; None for a dropped rollout."""
    if value is None:
        return None
    if isinstance(value, InferenceResult):
        value = {
            name: item
            for name, item in msgspec.structs.asdict(value).items()
            if item or name in {"text", "finish_reason", "usage"}
        }
    return msgspec.Raw(strict_json.dumps(value))


def _fatal(error: BaseException) -> RolloutError | None:
    """The error in it that ends the job, if there is one: a rollout may have wrapped it in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((fatal for inner in error.exceptions if (fatal := _fatal(inner))), None)
    return error if isinstance(error, RolloutError) and not isinstance(error, InferenceError) else None


def _failure(error: BaseException) -> Failure:
    message = str(error) or repr(error)
    if len(message) > _MESSAGE_CHARS:
        message = f"{message[:_MESSAGE_CHARS]}…"
    message = _clean(message)
    if isinstance(error, InferenceError):
        return Failure(
            cause=type(error).__name__,
            message=message,
            status=error.status,
            attempts=error.attempts,
            permanent=isinstance(error, (BadRequestError, QuarantinedError)),
            payload_sha256=error.payload_sha256,
        )
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
    return Failure(
        cause=type(error).__name__, message=f"the rollout function raised {type(error).__name__}: {message}{place}"
    )


def _finish(numbered: NumberedDocument, result: DocumentResult, usage: DocumentUsage) -> FinishedDocument:
    document = numbered.document
    try:
        metadata, media = (msgspec.Raw(strict_json.dumps(item)) for item in (document.metadata, document.media))
    except TypeError as error:
        failure = RolloutResult(0, failure=_failure(TypeError(f"the document's metadata or media: {error}")))
        metadata, media = msgspec.Raw(b"{}"), msgspec.Raw(b"[]")
        result = DocumentResult([failure])
    return FinishedDocument(
        number=numbered.number,
        key=_clean(numbered.key),
        id=_clean(document.id),
        text=_clean(document.text),
        metadata=metadata,
        media=media,
        values=result.values,
        failures=result.failures,
        outcome=result.outcome,
        requests=usage.requests,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        end=numbered.end,
    )


def _clean(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 file can hold."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def prompt_rollout(template: str, *, system_prompt: str | None, use_chat: bool) -> Rollout:
    """A rollout that fills a template and asks once.

    Raises:
        ConfigError: the template is not well-formed.
    """
    prompt = PromptTemplate(template, system_prompt=system_prompt, use_chat=use_chat)

    async def rollout(document: Document, generate: Generate, **_shared_context: Any) -> InferenceResult:
        return await generate(prompt.payload(document))

    return rollout
