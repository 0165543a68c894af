"""``airflow rollout …``."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from airflow_task import write_documents

from airflow_provider_rollout.commands import get_rollout_commands
from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.runner import InferenceRunner
from airflow_provider_rollout.engine.storage.output import ParquetWriter


async def ask(document, generate):
    """One question for each document."""
    return await generate({"messages": [{"role": "user", "content": document.text}]})


def test_airflow_offers_the_commands():
    """Through its own parser, as it reads them from the provider's entry."""
    (group,) = get_rollout_commands()
    assert [command.name for command in group.subcommands] == ["status", "report", "clean"]


@pytest.mark.airflow
def test_airflow_reports_on_a_run(airflow_db, tmp_path):
    """The tables and the exit code of ``airflow-rollout``, from Airflow's own command."""
    runner = InferenceRunner(
        ask, InferenceConfig(server_type="dummy", model_name_or_path="m"), ParquetWriter(str(tmp_path / "out"))
    )
    asyncio.run(runner.run_async([write_documents(tmp_path / "in")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "airflow", "rollout", "report", str(tmp_path / "out"), "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, "AIRFLOW_CONN_LAB": "aws://"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert "5" in json.dumps(report)
