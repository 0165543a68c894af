"""The link on a rollout task that leads to its progress.

Receives: the task as it ran.        Hands on: a URL, which Airflow stores with the task instance, also while it is deferred.
Invariant: the URL exists as soon as the task does: the progress page of ``plugins``, in the same web server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["RolloutProgressLink"]


class RolloutProgressLink(BaseOperatorLink):
    """Leads to the progress page."""

    name = "Rollout progress"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """The progress page of this task instance."""
        key: Any = ti_key
        base_url = conf.get("api", "base_url", fallback="") or "http://localhost:8080"
        names = [quote(part, safe="") for part in (key.dag_id, key.run_id, key.task_id)]
        page = "{}/rollout/dags/{}/runs/{}/tasks/{}".format(base_url.rstrip("/"), *names)
        return f"{page}/{-1 if key.map_index is None else key.map_index}"
