"""What every task that waits for a rollout job can be told: who watches, how often, for how long, and what ends the job.

Receives: keyword arguments, when the DAG is parsed.        Hands on: an operator that knows them.
Invariant: ``on_kill`` only notes that the task is to end. It runs inside a signal handler, so who ended the task is asked afterwards, when
talking to Airflow is safe.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf

__all__ = ["WatchingOperator"]


class WatchingOperator(BaseOperator):
    """An operator that waits for a rollout job.

    Args:
        deferrable: let the triggerer watch, which frees the worker slot.
        poll_interval: seconds between two looks at the job.
        timeout: seconds, or a timedelta, until the job is cancelled.
        cancel_on_kill: whether ending the task by hand ends the job.
    """

    is_stopped = False

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = conf.getfloat("rollout", "poll_interval", fallback=10.0),
        timeout: float | timedelta | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.cancel_on_kill = cancel_on_kill

    def on_kill(self) -> None:
        """The task is told to end; its execution leaves the watch."""
        self.is_stopped = True
