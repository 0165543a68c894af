"""Who told a running task to stop: a person, or the machine under the worker.

Receives: the context of a task that got SIGTERM.        Hands on: whether a person ended the task.
Why: Airflow's supervisor sends the same SIGTERM for both. It does so when a heartbeat is refused, because somebody marked the task or its
run failed or successful, or cleared it; and when the supervisor itself is told to stop, by a spot reclaim, a pod eviction or a deploy.
The difference is in Airflow's database: in the first case the task instance is not "running" any more.
Invariants: asked from the task's own thread after the signal handler has returned, for the handler may have interrupted a conversation
with the supervisor. While it waits for the task to end (5 s), the supervisor answers. Nobody to answer means the machine.
Source: task-sdk 1.3.2, supervisor.py (``_send_heartbeat_if_needed``, ``wait``, ``kill``) and task_runner.py (``_on_term``).
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

__all__ = ["is_ended_by_person"]

log = logging.getLogger("airflow.task.operators.rollout")


def is_ended_by_person(context: Context) -> bool:
    """Whether Airflow has another state for this task instance than the one it is in."""
    ti: Any = context["ti"]
    try:
        states = ti.get_task_states(
            dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
    except (AirflowException, AirflowRuntimeError, OSError, EOFError) as error:
        log.warning("Airflow cannot be asked who ended the task (%s); its job is left alone", error)
        return False
    name = ti.task_id if ti.map_index is None or ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
    of_run = states.get(ti.run_id, {})
    return name not in of_run or of_run[name] != "running"
