"""One replica's life: start, ready, watch, stop, and again.

Receives: an InferenceConfig.        Hands on: an open lane while the replica answers.
Invariants: ready means that our process is alive AND /v1/models names the right model AND, where the server takes our key, that
nobody gets in without it; so a foreign server on the port is not taken for ours. Healthy means that requests end or tokens move. The
exit of a server is noticed at once, and its exit code says nothing about whether it was meant.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import InferenceError, ServerError, ServerExitedError, ServerStartError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.client import EndpointClient
from airflow_provider_rollout.engine.serving.guard import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from airflow_provider_rollout.engine.serving.hints import start_hint
from airflow_provider_rollout.engine.serving.lane import Lane
from airflow_provider_rollout.engine.serving.process import ServerProcess, read_tail
from airflow_provider_rollout.engine.serving.watchdog import Watchdog

__all__ = ["HOST", "InferenceServer", "OwnedServer"]

_log = logging.getLogger(__name__)

HOST = "127.0.0.1"

# An unknown flag (argparse's exit code), a program that is no program: the same command cannot do better next time.
_HOPELESS_EXITS = frozenset({2, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND})
_RESTART_BASE_S, _RESTART_MAX_S = 1.0, 30.0
_WATCH_S = 5.0


class InferenceServer(ABC):
    """One replica, owned or not, and the lane to it."""

    def __init__(self, name: str, *, is_owned: bool, on_change: Callable[[], None]) -> None:
        self.lane = Lane(name, is_owned=is_owned, on_change=on_change)

    @abstractmethod
    async def keep(self) -> None:
        """Keep the lane open whenever the replica answers, until cancelled.

        Raises:
            ServerError: it never will again.
        """

    @abstractmethod
    def log_tail(self) -> str | None:
        """The last lines of the server's log, if there is one."""


class OwnedServer(InferenceServer):
    """A server process that the job starts.

    Attributes:
        takes_key: whether the server refuses requests without the key it was given.
    """

    takes_key = True

    def __init__(
        self,
        config: InferenceConfig,
        *,
        replica_index: int,
        api_key: str,
        metrics: MetricsKeeper,
        log_folder: Path,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(f"{config.server_type} replica {replica_index}", is_owned=True, on_change=on_change)
        self.config = config
        self.replica_index = replica_index
        self.api_key = api_key
        self._metrics = metrics
        folder = Path(config.server_log_folder) if config.server_log_folder else log_folder
        self.log_path = folder / f"{config.server_type}_{replica_index}.{os.getpid()}.log"

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """The program and its arguments; holds no secret, for every user of the machine can read it."""

    def environment(self) -> dict[str, str]:
        """What is added to the job's environment."""
        return {}

    def log_tail(self) -> str | None:
        """The last lines of the log."""
        return read_tail(self.log_path)

    async def keep(self) -> None:
        """Start the server, and again when it has died, until cancelled.

        Raises:
            ServerStartError: it did not become ready, ``server_start_max_retries`` times in a row or for a reason that stays.
            ServerExitedError: it died that often without completing a request in between, or cannot be killed.
        """
        failures = 0
        while self.lane.failure is None:
            try:
                await self._live()
            except ServerError as error:
                completed = self.lane.life.completed
                failures = 1 if completed else failures + 1
                if failures > self.config.server_start_max_retries or getattr(error, "is_final", False):
                    raise
                wait_s = min(_RESTART_MAX_S, _RESTART_BASE_S * 2.0 ** (failures - 1))
                _log.warning("%s; it is started again in %.0f s (%d of %d)", error, wait_s, failures, self._retries)
                self.lane.life.completed = 0
                await asyncio.sleep(wait_s)

    @property
    def _retries(self) -> int:
        return self.config.server_start_max_retries
