"""What Airflow loads as a plugin."""

import json
import subprocess
import sys

import pytest

LOADED = """
import json, sys
import airflow.sdk.plugins_manager
before = set(sys.modules)
import airflow_provider_rollout.plugins.progress
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_airflow_finds_the_page_by_the_entry_point_of_the_package():
    """Plugins in the provider's entry are passed over unless Airflow is told otherwise."""
    from airflow.plugins_manager import get_fastapi_plugins

    apps, _ = get_fastapi_plugins()
    assert "/rollout" in {app["url_prefix"] for app in apps}


def test_what_every_process_of_airflow_loads_is_one_small_module():
    """Scheduler, DAG processor and workers load plugins too; only the web server shows the page."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LOADED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours = {name for name in json.loads(done.stdout.splitlines()[-1]) if not name.startswith("airflow.")}
    assert ours - {"airflow_provider_rollout"} == {
        "airflow_provider_rollout.plugins",
        "airflow_provider_rollout.plugins.progress",
    }


@pytest.mark.airflow
@pytest.mark.filterwarnings("ignore")
def test_the_page_is_imported_when_somebody_looks(airflow_db):
    """And it asks who that is."""
    from fastapi.testclient import TestClient

    from airflow_provider_rollout.plugins.progress import progress_app

    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "airflow_provider_rollout.plugins.page", raising=False)
        answer = TestClient(progress_app).get("/dags/d/runs/r/tasks/t/-1")
        assert "airflow_provider_rollout.plugins.page" in sys.modules
    assert answer.status_code == 401
