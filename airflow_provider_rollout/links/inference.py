"""The link on a rollout task that leads to its progress.

Receives: the task as it ran.        Hands on: a URL, which Airflow stores with the task instance, also while it is deferred.
Invariant: the URL exists as soon as the task does: its page in Airflow, whose log receives a line of progress with every poll.
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
    """Leads to the log of the running try."""

    name = "Rollout progress"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """The page of this try in Airflow."""
        key: Any = ti_key
        base_url = conf.get("api", "base_url", fallback="") or "http://localhost:8080"
        mapped = f"/mapped/{key.map_index}" if (key.map_index or 0) >= 0 and key.map_index is not None else ""
        parts = [quote(part, safe="") for part in (key.dag_id, key.run_id, key.task_id)]
        page = "{}/dags/{}/runs/{}/tasks/{}".format(base_url.rstrip("/"), *parts)
        return f"{page}{mapped}?try_number={key.try_number}"
