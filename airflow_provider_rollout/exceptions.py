"""How a rollout task can fail, for Airflow and its retry policies.

::

    AirflowFailException
    ├─ RolloutConfigError    what the job was handed is wrong; a retry cannot help
    └─ RolloutCancelled      a person stopped the job; Airflow must not start it again by itself
    AirflowException
    ├─ RolloutFailed         the job ran and failed; a retry resumes it
    ├─ RolloutJobLost        the job ended or went silent without saying how; a retry re-attaches or resumes
    └─ RolloutTimeout        the job passed the task's ``timeout`` and was cancelled; a retry resumes it

Receives: nothing.        Hands on: exception classes, and ``ROLLOUT_RETRY_POLICY`` for ``retry_policy=``.
Invariant: the engine's errors never reach Airflow as they are; ``operators/finish.py`` is the one place that turns them into these.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import ExceptionRetryPolicy

    ROLLOUT_RETRY_POLICY: ExceptionRetryPolicy

__all__ = [
    "ROLLOUT_RETRY_POLICY",
    "RolloutCancelled",
    "RolloutConfigError",
    "RolloutFailed",
    "RolloutJobLost",
    "RolloutTimeout",
]


class RolloutConfigError(AirflowFailException):
    """A parameter, a shard or a row is wrong; the same task will fail again, so it is not retried."""


class RolloutCancelled(AirflowFailException):
    """A person cancelled the job; its state is kept, and clearing the task resumes it."""


class RolloutFailed(AirflowException):
    """The job failed; what it finished is kept, and a retry goes on from there."""


class RolloutJobLost(AirflowException):
    """The job ended without saying how, or nobody can see it; a retry re-attaches to it or resumes its work."""


class RolloutTimeout(AirflowException):
    """The job was cancelled at the task's ``timeout``; a retry resumes it."""


@cache
def _retry_policy() -> ExceptionRetryPolicy:
    """Retries a lost job soon and a timed out one never; all else follows the task's own settings. Opt in with ``retry_policy=``."""
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule  # noqa: PLC0415 - only for DAGs that opt in

    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=RolloutJobLost,
                action=RetryAction.RETRY,
                retry_delay=timedelta(seconds=30),
                reason="the job was lost; its work is kept and resumes",
            ),
            RetryRule(exception=RolloutTimeout, action=RetryAction.FAIL, reason="the deadline has passed"),
        ]
    )


def __getattr__(name: str) -> Any:
    if name == "ROLLOUT_RETRY_POLICY":
        return _retry_policy()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
