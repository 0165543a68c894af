"""A rollout in Python: the model answers, then judges its own answer.

``@task.rollout`` makes the function below the rollout. It runs in the job, once per document, many documents at a time; a job that is
killed between the two calls finds the first one's answer in its cache.
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_rollout.engine.document import Document
from airflow_provider_rollout.engine.result import Generate

DATA = Path(__file__).parent / "data"
OUTPUT = os.environ.get("ROLLOUT_OUTPUT", f"{tempfile.gettempdir()}/airflow-rollout-examples")
MIN_WORDS = 10


@task.rollout(
    source=f"{DATA}/*.jsonl",
    output=OUTPUT + "/judged/{{ dag_run.run_after | ds }}",
    config={
        "server_type": os.environ.get("ROLLOUT_SERVER_TYPE", "dummy"),
        "model_name_or_path": os.environ.get("ROLLOUT_MODEL", "dummy-model"),
        "default_generation_params": {"max_tokens": 64},
    },
    output_format="jsonl",
    retries=2,
    retry_delay=timedelta(seconds=10),
)
async def title_and_judgement(document: Document, generate: Generate, style: str) -> dict[str, Any] | None:
    """Ask for a title, then for a judgement of it; short documents are dropped."""
    if document.metadata["words"] < MIN_WORDS:
        return None
    question = {"role": "user", "content": f"Give this text a {style} title:\n\n{document.text}"}
    title = await generate({"messages": [question]})
    answer = {"role": "assistant", "content": title.text}
    judge = {"role": "user", "content": "Is this a good title? Answer yes or no, and say why in one sentence."}
    judgement = await generate({"messages": [question, answer, judge]})
    return {"title": title.text, "judgement": judgement.text, "finish_reason": judgement.finish_reason}


@dag(schedule=None, tags=["rollout", "example"])
def two_calls_per_document() -> None:
    """The arguments of the call are the rollout's own."""
    title_and_judgement(style="playful")


two_calls_per_document()
