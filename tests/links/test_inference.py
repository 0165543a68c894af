"""The link to a task's progress."""

from types import SimpleNamespace

import pytest

from airflow_provider_rollout.links.inference import RolloutProgressLink


@pytest.mark.parametrize(
    ("map_index", "page"),
    [
        (
            -1,
            "http://localhost:8080/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/group.ask?try_number=2",
        ),
        (
            3,
            "http://localhost:8080/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/group.ask/mapped/3?try_number=2",
        ),
    ],
)
def test_the_link_leads_to_the_page_of_the_running_try(map_index, page):
    """That page exists while the task is deferred, and its log tells the progress."""
    key = SimpleNamespace(
        dag_id="d", run_id="manual__2026-11-29T10:00:00+00:00", task_id="group.ask", map_index=map_index, try_number=2
    )
    assert RolloutProgressLink().get_link(None, ti_key=key) == page


def test_the_link_keeps_the_path_prefix_of_airflow(monkeypatch):
    """Airflow may live below a path of its host."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/airflow/")
    key = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=None, try_number=1)
    assert RolloutProgressLink().get_link(None, ti_key=key) == "https://host/airflow/dags/d/runs/r/tasks/t?try_number=1"
