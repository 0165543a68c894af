"""``make demo``: run an example DAG as it is, in an Airflow of its own below .demo/, and show what it wrote and where."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / ".demo"
DAG_FILE = ROOT / "dags" / "ranks_over_shards.py"
OUTPUT = DEMO / "output"


def main() -> int:
    """Run the DAG; 0 when it succeeded."""
    prepare_airflow()
    console = Console()
    console.print(f"Running {DAG_FILE.relative_to(ROOT)}: two ranks, a dummy model server each …")
    started_s = time.monotonic()
    state = run_dag()
    runs = [path.parent for path in sorted(OUTPUT.rglob("_rollout"))]
    skipped = [asyncio.run(show(console, run)) for run in runs]
    console.print(f"The DAG run ended as {state} after {time.monotonic() - started_s:.0f} s.")
    if state == "success":
        console.print("Look closer:  .venv/bin/airflow-rollout report", Text(str(runs[0].relative_to(Path.cwd()))))
        if not all(skipped):
            console.print("Run it again: everything is done, and no model is asked.")
    return 0 if state == "success" else 1


def prepare_airflow() -> None:
    """Point Airflow to a home of its own, before anything imports it."""
    warnings.simplefilter("ignore")  # deprecations inside Airflow are no part of the demo
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        del os.environ[name]
    bundle = {
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(ROOT / "dags")},
    }
    os.environ |= {
        "AIRFLOW_HOME": str(DEMO / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([{"name": "examples", **bundle}]),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        # The end of a list of XComs is found by asking for one too many.
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow.sdk.api.client=CRITICAL",
        "ROLLOUT_OUTPUT": str(OUTPUT),
    }


def run_dag() -> str:
    """Run the DAG in this process; returns the state of its run."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import initdb

    if not (DEMO / "airflow" / "airflow.db").exists():
        initdb()
    found = DagBag(str(DAG_FILE)).dags["ranks_over_shards"]
    # One day for all runs, so that a second run finds the work of the first.
    return str(found.test(run_after=datetime.now(UTC).replace(year=2026, month=1, day=1)).state)


async def show(console: Console, output: Path) -> bool:
    """One run, a row for each rank, and what its last attempt had to do; whether that was nothing."""
    from airflow_provider_rollout.engine.run_state import RunState

    run = await RunState.find(str(output))
    attempts = {rank: records[-1] for rank, records in (await run.attempts()).items()}
    table = Table(title=f"Written to {output.relative_to(Path.cwd())}", title_justify="left", box=SIMPLE)
    for name in ("rank", "files", "documents", "written", "failed", "asked this time", "done before"):
        table.add_column(name, justify="right")
    for manifest in await run.manifests():
        attempt = attempts[manifest.rank]
        numbers = (
            manifest.rank,
            len(manifest.outputs),
            manifest.documents_in,
            manifest.documents_written,
            manifest.documents_failed,
            attempt.totals.get("requests_sent", 0),
            attempt.documents_resumed,
        )
        table.add_row(*map(str, numbers))
    console.print(table)
    is_skipped = all(
        attempt.state == "succeeded" and attempt.documents_resumed == attempt.documents_done
        for attempt in attempts.values()
    )
    if is_skipped:
        console.print("Everything was done already, and was skipped.")
    return is_skipped


if __name__ == "__main__":
    sys.exit(main())
