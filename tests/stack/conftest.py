"""One Airflow and one StatsD daemon for all scenarios."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from servers.airflow_stack import run_airflow
from servers.postgres import run_postgres
from servers.statsd import run_statsd

DAGS = Path(__file__).parent / "dags"
EXAMPLES = Path(__file__).parent.parent.parent / "dags"
NAMES = ("deferred", "waiting", "deferred_own_server", "waiting_own_server", "strict", "ranks", "thirty_days")


@pytest.fixture(scope="session")
def statsd(tmp_path_factory):
    """A real daemon that Airflow sends its metrics to."""
    with run_statsd(tmp_path_factory.mktemp("statsd")) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def stack(tmp_path_factory, statsd):
    """A real Airflow with the DAGs of the scenarios and the examples."""
    home = tmp_path_factory.mktemp("airflow")
    dags = home / "dags"
    shutil.copytree(DAGS, dags)
    shutil.copytree(EXAMPLES, dags / "examples")
    more = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(statsd.port),
        "ROLLOUT_OUTPUT": str(home / "examples"),
        "ROLLOUT_EXAMPLE_DATA": str(home / "partitions"),
        "TMPDIR": str(tmp_path_factory.mktemp("scratch")),
    }
    with run_postgres() as url, run_airflow(home, dags, url, more) as running:
        running.ask("POST", "pools", {"name": "gpu", "slots": 2, "include_deferred": True})
        running.wait_dags(*NAMES)
        yield running
