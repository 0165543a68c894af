"""One Airflow, one S3 server and one StatsD daemon for all scenarios."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import psutil
import pytest
from servers.airflow_stack import run_airflow
from servers.postgres import run_postgres
from servers.seaweedfs import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from servers.statsd import run_statsd
from stack.secrets import API_KEY

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "dags"
NAMES = (
    "deferred", "waiting", "deferred_own_server", "waiting_own_server", "forced", "late", "late_retried", "lineage", "strict", "ranks",
    "thirty_days", "partitioned", *(f"many_{first}" for first in range(0, 200, 10)), "probe",
)  # fmt: skip


@pytest.fixture(scope="session")
def statsd(tmp_path_factory):
    """A real daemon that Airflow sends its metrics to."""
    with run_statsd(tmp_path_factory.mktemp("statsd")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def stack(tmp_path_factory, statsd, s3):
    """A real Airflow with the DAGs of the scenarios and the examples; only its connections hold the keys of the S3 server and the model."""
    home = tmp_path_factory.mktemp("airflow")
    dags = home / "dags"
    shutil.copytree(HERE / "dags", dags)
    shutil.copytree(HERE / "plugins", home / "plugins")
    shutil.copytree(EXAMPLES, dags / "examples")
    (home / "scratch").mkdir()
    more = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(statsd.port),
        "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(home / "lineage"), "append": True}),
        "ROLLOUT_OUTPUT": str(home / "examples"),
        "ROLLOUT_WATCHED": str(home / "watched"),
        "ROLLOUT_WATCHED_PROCESS": json.dumps([os.getpid(), psutil.Process().create_time()]),
        "TMPDIR": str(home / "scratch"),
    }  # fmt: skip
    with run_postgres() as url, run_airflow(home, dags, url, more) as running:
        running.ask("POST", "pools", {"name": "gpu", "slots": 2, "include_deferred": True})
        running.add_connection("model", "vllm", password=API_KEY)
        add_store(running, "store", s3.endpoint_url)
        running.wait_dags(*NAMES)
        yield running


def add_store(stack, conn_id: str, endpoint_url: str) -> None:
    """A connection to the S3 server, or to a proxy before it."""
    extra = json.dumps({"endpoint_url": endpoint_url, "region_name": "us-east-1"})
    stack.add_connection(conn_id, "aws", login=ACCESS_KEY_ID, password=SECRET_ACCESS_KEY, extra=extra)


on_s3 = pytest.mark.parametrize("store_uri", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True, ids=["s3"])
on_folder_and_s3 = pytest.mark.parametrize(
    "store_uri", ["folder", pytest.param("s3", marks=pytest.mark.s3)], indirect=True, ids=["folder", "s3"]
)
