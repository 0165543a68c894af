"""What a task instance remembers of its job between tries and clears.

Receives: the task's context.        Hands on: a Memory, kept in Airflow's task state store under one key.
Invariants: a hint, never the truth: the store of the job's state decides. It is written before the launch (with a job id) and after it
(with the handle), so that a worker that dies in between leaves a trace. A state store that cannot be read is an error, not an empty one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from airflow.sdk import Context
from airflow.sdk.execution_time.context import NEVER_EXPIRE

__all__ = ["MEMORY_KEY", "Memory", "mark_finished", "recall", "remember"]

MEMORY_KEY = "rollout_job"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Attributes:
        job_id, rank, checkpoints: see ``hooks.watch.Job``.
        spec_digest: what it was asked to do.
        handle: the launcher's; None before the launch.
        rerun_token: makes a forced rerun begin anew once, and resume after that.
        finished: whether its result was handed to Airflow.
    """

    job_id: str
    rank: int
    checkpoints: str
    spec_digest: str
    handle: dict[str, Any] | None = None
    rerun_token: str | None = None
    finished: bool = False


def recall(context: Context) -> Memory | None:
    """What this task instance knows of its last launch; None when there was none."""
    kept: Any = context["task_state_store"].get(MEMORY_KEY)
    if kept is None:
        return None
    return msgspec.convert(kept, Memory)


def remember(context: Context, memory: Memory) -> None:
    """Keep it for as long as the DAG run is kept."""
    context["task_state_store"].set(MEMORY_KEY, msgspec.to_builtins(memory), retention=NEVER_EXPIRE)


def mark_finished(context: Context, job_id: str) -> None:
    """Note that the result of a job has reached Airflow."""
    memory = recall(context)
    if memory is not None and memory.job_id == job_id:
        remember(context, msgspec.structs.replace(memory, finished=True))
