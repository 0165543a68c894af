"""One partition of a dataset each day: made for backfills.

Where the answers go follows from the data, never from the run: a scheduled run, a backfill and a run by hand of the same day find one
another's work. A backfill that is repeated with ``--reprocess-behavior failed`` asks only for what is missing::

    airflow backfill create --dag-id dated_partitions --from-date 2026-01-01 --to-date 2026-01-30 --reprocess-behavior failed
"""

import os
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import Asset, dag, task

from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.ranks import plan_ranks

DATA = Path(__file__).parent / "data"
OUTPUT = os.environ.get("ROLLOUT_OUTPUT", f"{tempfile.gettempdir()}/airflow-rollout-examples")
# A run by hand has no logical date, and one that an asset's partition started has its key.
DAY = "{{ dag_run.partition_key or (dag_run.logical_date or dag_run.run_after) | ds }}"
SOURCE, ANSWERS = f"{OUTPUT}/partitions/{DAY}", f"{OUTPUT}/answers/{DAY}"


@task
def land(folder: str) -> None:
    """Stands for whoever delivers a day's documents; what is there is not written again."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for shard in DATA.glob("*.jsonl"):
        if not (target / shard.name).exists():
            shutil.copy(shard, target)


@task
def plan(source: str, output: str) -> list[dict[str, int]]:
    """As many mapped tasks as the day's documents are worth, and no more than there are GPUs."""
    return plan_ranks(source, output, max_ranks=2, bytes_per_rank=2048)


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=4,
    tags=["rollout", "example"],
)
def dated_partitions() -> None:
    """Deliver, plan, ask."""
    ranks = plan(SOURCE, ANSWERS)
    land(SOURCE) >> ranks
    InferenceOperator.partial(
        task_id="ask",
        source=SOURCE,
        output=ANSWERS,
        prompt_template="Translate to French:\n\n{text}",
        config={
            "server_type": os.environ.get("ROLLOUT_SERVER_TYPE", "dummy"),
            "model_name_or_path": os.environ.get("ROLLOUT_MODEL", "dummy-model"),
        },
        map_index_template="rank {{ task.rank }} of {{ task.world_size }}",
        outlets=[Asset("rollout_example_answers")],
        retries=2,
        retry_delay=timedelta(seconds=10),
    ).expand_kwargs(ranks)


dated_partitions()
