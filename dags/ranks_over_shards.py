"""One dataset shared out over N ranks, one mapped task each, and a last task that checks that nothing is missing.

Each rank may run on its own GPU; a pool of as many slots as there are GPUs keeps the others waiting. A rank that fails is retried or
cleared alone.
"""

import asyncio
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_rollout.hooks.store import open_store
from airflow_provider_rollout.operators.inference import InferenceOperator

DATA = Path(__file__).parent / "data"
OUTPUT = os.environ.get("ROLLOUT_OUTPUT", f"{tempfile.gettempdir()}/airflow-rollout-examples")
RANKS = int(os.environ.get("ROLLOUT_RANKS", "2"))


@task
def check_manifests(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare what the ranks report with the manifest of the run.

    Raises:
        ValueError: a rank is missing, or the counts do not add up.
    """
    from airflow_provider_rollout.engine.storage.manifest import read_run_manifest  # noqa: PLC0415 - not at parse time

    results = list(results)
    output = results[0]["output"]
    manifest = asyncio.run(read_run_manifest(open_store(output, "aws_default")))
    if manifest is None or sorted(result["rank"] for result in results) != list(range(manifest.world_size)):
        raise ValueError(f"not all ranks of {output} are done")
    for name in ("documents_in", "documents_written", "documents_failed", "documents_dropped"):
        if sum(result[name] for result in results) != getattr(manifest, name):
            raise ValueError(f"{name}: the ranks of {output} do not add up to its manifest")
    return {"output": output, "documents": manifest.documents_in, "files": len(manifest.outputs)}


@dag(schedule=None, tags=["rollout", "example"])
def ranks_over_shards() -> None:
    """Rank r of N takes shards r, r + N, r + 2N and so on."""
    ranks = InferenceOperator.partial(
        task_id="extract_facts",
        source=f"{DATA}/*.jsonl",
        output=OUTPUT + "/facts/{{ dag_run.run_after | ds }}",
        prompt_template="List the facts in this text:\n\n{text}",
        config={
            "server_type": os.environ.get("ROLLOUT_SERVER_TYPE", "dummy"),
            "model_name_or_path": os.environ.get("ROLLOUT_MODEL", "dummy-model"),
        },
        world_size=RANKS,
        map_index_template="rank {{ task.rank }}",
        retries=2,
        retry_delay=timedelta(seconds=10),
    ).expand(rank=list(range(RANKS)))
    check_manifests(ranks.output)


ranks_over_shards()
