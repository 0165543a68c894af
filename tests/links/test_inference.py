"""The link to a task's progress."""

from types import SimpleNamespace

import pytest

from airflow_provider_rollout.links.inference import RolloutProgressLink


@pytest.mark.parametrize(
    ("map_index", "page"),
    [
        (-1, "/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/group.ask/-1"),
        (3, "/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/group.ask/3"),
    ],
)
def test_the_link_leads_to_the_progress_page_of_the_task_instance(map_index, page):
    """That page can be seen while the task is deferred."""
    key = SimpleNamespace(
        dag_id="d", run_id="manual__2026-11-29T10:00:00+00:00", task_id="group.ask", map_index=map_index, try_number=2
    )
    assert RolloutProgressLink().get_link(None, ti_key=key) == f"http://localhost:8080/rollout{page}"


def test_the_link_keeps_the_path_prefix_of_airflow(monkeypatch):
    """Airflow may live below a path of its host."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/airflow/")
    key = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=None, try_number=1)
    assert RolloutProgressLink().get_link(None, ti_key=key) == "https://host/airflow/rollout/dags/d/runs/r/tasks/t/-1"
