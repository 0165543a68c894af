"""What every launcher can do: start a job, say whether it lives, stop it, show the end of its log.

Receives: a Launch.        Hands on: a handle, a JSON object without secrets that any process may keep and ask with.
Invariants: a launcher keeps no state of its own beside the handle. "gone" is said only when it is certain; whoever cannot see the job
says "unknown", and the job's heartbeat decides. Calls block: an event loop makes them in a thread.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.progress import Liveness

__all__ = ["Handle", "Launch", "Launcher", "launcher_named"]

Handle = dict[str, Any]
"""Names the launched job: ``launcher``, ``job_id``, ``rank``, ``checkpoints``, and what the launcher itself needs."""

_LAUNCHERS = {"process": "airflow_provider_rollout.launchers.process:ProcessLauncher"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One job to start.

    Attributes:
        job_id: names the launch.
        rank: the rank it works on.
        checkpoints: URI of its state.
        spec_uri: URI of its stored spec.
        environment: variables that only this job gets; here travel its secrets.
    """

    job_id: str
    rank: int
    checkpoints: str
    spec_uri: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class Launcher(ABC):
    """Where jobs run."""

    name: ClassVar[str]

    @abstractmethod
    def submit(self, launch: Launch) -> Handle:
        """Start a job and return its handle.

        Raises:
            RolloutError: it cannot be started.
        """

    @abstractmethod
    def status(self, handle: Mapping[str, Any]) -> Liveness:
        """Whether the job's process lives, as far as this machine can tell."""

    @abstractmethod
    def exit_code(self, handle: Mapping[str, Any]) -> int | None:
        """How the job ended; None while it runs, or when nobody knows."""

    @abstractmethod
    def cancel(self, handle: Mapping[str, Any], *, kill_after_s: float | None) -> None:
        """Ask the job to stop, and wait for it.

        Args:
            handle: the job.
            kill_after_s: seconds until it is ended by force; None only asks and does not wait.
        """

    @abstractmethod
    def log_tail(self, handle: Mapping[str, Any], *, lines: int = 40) -> str:
        """The last lines of the job's log; "" when this machine cannot read it."""


def launcher_named(name: str) -> Launcher:
    """The launcher of a name.

    Raises:
        ConfigError: there is none.
    """
    try:
        module, _, attribute = _LAUNCHERS[name].partition(":")
    except KeyError:
        known = ", ".join(sorted(_LAUNCHERS))
        raise ConfigError(
            f"there is no launcher {name!r}; correct `launcher` in the connection's extra: known is {known}"
        ) from None
    launcher: Launcher = getattr(importlib.import_module(module), attribute)()
    return launcher
