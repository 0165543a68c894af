"""An Airflow of its own for the tests: a temporary home, SQLite, two DAG bundles. Imported before anything imports Airflow."""

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "dags"
HOME = Path(tempfile.mkdtemp(prefix="rollout-airflow-"))
DAGS = HOME / "dags"
DAGS.mkdir()
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
    del os.environ[name]
os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [
                {
                    "name": name,
                    "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                    "kwargs": {"path": str(path)},
                }
                for name, path in (("examples", EXAMPLES), ("tests", DAGS))
            ]
        ),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }
)


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """Airflow's database, made once; the folder in which a test may put a DAG file."""
    from airflow.utils.db import initdb

    initdb()
    return DAGS
