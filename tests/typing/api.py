"""What a user's type checker sees. Checked by mypy, never executed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from airflow_provider_rollout.engine import (
    BadRequestError,
    Document,
    FailureBudget,
    InferenceConfig,
    InferenceResult,
    InferenceRunner,
    JobSpec,
    JsonlWriter,
    Media,
    ParquetWriter,
    ReaderConfig,
    RolloutError,
)
from airflow_provider_rollout.engine.result import Generate, Rollout


async def ask(document: Document, generate: Generate, **shared: Any) -> InferenceResult | None:
    """Return the answer, or None to drop the document."""
    payload = {"messages": [{"role": "user", "content": document.text}], "max_tokens": 16}
    try:
        answer = await generate(payload)
    except BadRequestError as error:
        document.metadata["status"] = error.status
        return None
    tokens: int = answer.usage["completion_tokens"]
    document.media.append(Media(id="1", type="image"))
    return answer if tokens else None


async def judge(document: Document, generate: Generate, *, rubric: str) -> dict[str, Any]:
    """Return JSON, with a keyword of one's own."""
    answer = await generate({"messages": [], "rubric": rubric})
    return {"text": answer.text, "why": answer.reasoning, "id": document.id}


config = InferenceConfig(server_type="dummy", model_name_or_path="m", default_generation_params={"temperature": 0.0})
spec = JobSpec(
    job_id="j",
    source=["in.jsonl"],
    output="out",
    config=config,
    prompt_template="{text}",
    reader=ReaderConfig(on_bad_row="skip"),
    failure_budget=FailureBudget(max_failed_share=0.01),
)
rollouts: list[Rollout] = [ask, judge]
writers: list[ParquetWriter | JsonlWriter] = [ParquetWriter("out"), JsonlWriter("out", compression="zstd")]
context: AbstractAsyncContextManager[dict[str, Any]] | None = None
runner = InferenceRunner(rollout_fn=judge, config=config, output_writer=ParquetWriter("s3://bucket/out"))
failure: type[Exception] = RolloutError
