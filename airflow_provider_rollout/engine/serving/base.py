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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

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

EXIT_USAGE = 2  # argparse's exit code for an unknown flag or a wrong value
# The same command cannot do better next time.
_HOPELESS_EXITS = frozenset({EXIT_USAGE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND})
_RESTART_BASE_S, _RESTART_MAX_S = 0.5, 30.0
_STRANGE_S = 10.0  # a wrong answer for so long is not a server that is about to notice that its port is taken
_MESSAGE_LINES = 15
_REFUSED_TICKS = 3  # vLLM without its engine may close its port and then wait for its clients without end


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
        extra_environment: Mapping[str, str],
    ) -> None:
        super().__init__(f"{config.server_type} replica {replica_index}", is_owned=True, on_change=on_change)
        self.config = config
        self.replica_index = replica_index
        self.api_key = api_key
        self._metrics = metrics
        self._extra_environment = extra_environment
        self.scratch = log_folder
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
        return self._without_key(read_tail(self.log_path))

    async def keep(self) -> None:
        """Start the server, and again when it has died, until cancelled.

        Raises:
            ServerStartError: it did not become ready, ``server_start_max_retries`` times in a row or for a reason that stays.
            ServerExitedError: it died that often without completing a request in between, or cannot be killed.
        """
        failures, allowed = 0, self.config.server_start_max_retries
        while True:
            life = self.lane.life
            error = await self._live()
            if self.lane.failure is not None:
                return
            if self.lane.life is not life and self.lane.life.completed:
                failures = 0
            failures += 1
            if failures > allowed:
                raise error
            wait_s = min(_RESTART_MAX_S, _RESTART_BASE_S * 2.0 ** (failures - 1))
            _log.warning("%s\nIt is started again in %.1f s (%d of %d).", error, wait_s, failures, allowed)
            await asyncio.sleep(wait_s)

    async def _live(self) -> ServerError:
        """Run the server once; why it ended.

        Raises:
            ServerError: and a restart will not help.
        """
        port = free_port()
        self._metrics.count("server_starts")
        environment = {**os.environ, **self.config.server_env, **self.environment(), **self._extra_environment}
        process = ServerProcess(self.command(port), environment=environment, log_path=self.log_path)
        client = EndpointClient(
            f"http://{HOST}:{port}", api_key=self.api_key, timeout_s=self.config.request_timeout, use_proxy=False
        )
        async with process, client:
            error = await self._until_ready(process, client)
            if error is not None:
                self.start_failed()
                return error
            self.lane.open(client)
            try:
                return await self._until_dead(process, client, port)
            finally:
                self.lane.close()
                self.lane.life.end()

    async def _until_ready(self, process: ServerProcess, client: EndpointClient) -> ServerStartError | None:
        """None when it is ready, or why it is not."""
        config = self.config
        started_s, asked = time.monotonic(), 0
        strange_since_s: float | None = None
        while True:
            code = await process.wait(config.server_ready_delay_sec)
            if code is not None:
                return self._early_exit(code, process)
            asked += 1
            state, words = await self._ask(client)
            now_s = time.monotonic()
            if state == "ready":
                _log.info("%s is ready after %.1f s", self.lane.name, now_s - started_s)
                return None
            strange_since_s = None if state == "silent" else strange_since_s or now_s
            if strange_since_s is not None and now_s - strange_since_s >= _STRANGE_S:
                return self._start_error(words, process)
            if now_s - started_s >= config.server_start_timeout_sec:
                return self._start_error(f"not ready within {config.server_start_timeout_sec:.0f} s: {words}", process)
            if config.server_ready_max_attempts is not None and asked >= config.server_ready_max_attempts:
                return self._start_error(f"not ready after it was asked {asked} times: {words}", process)

    async def _ask(self, client: EndpointClient) -> tuple[Literal["ready", "silent", "strange"], str]:
        """Whether it is our server that answers, and ready; and in words."""
        model = self.config.model_name_or_path
        try:
            answer = await client.models()
            if answer.status == 404 and not self.takes_key:
                return "ready", ""
            if answer.status >= 500:
                return "silent", f"/v1/models answers {answer.status}"
            if answer.status != 200:
                return "strange", f"/v1/models on its port answers {answer.status}; another server may have the port"
            if model not in answer.names:
                return "strange", f"the server on its port serves {', '.join(answer.names)}, not {model}"
            if self.takes_key and (await client.models(with_key=False)).status == 200:
                return "strange", "the server on its port lets everybody in; it is not the one that was started"
        except InferenceError as error:
            return "silent", str(error)
        return "ready", ""

    async def _until_dead(self, process: ServerProcess, client: EndpointClient, port: int) -> ServerExitedError:
        watchdog = Watchdog(self.lane, client, self.config)
        refused = 0
        while True:
            code = await process.wait(watchdog.tick_s)
            if code is not None:
                return ServerExitedError(
                    f"{self.lane.name} exited with code {code} while it served.{self._tail(process)}"
                )
            if self.lane.failure is not None:
                return ServerExitedError(str(self.lane.failure))
            refused = refused + 1 if await _refuses(port) else 0
            if refused == _REFUSED_TICKS:
                return ServerExitedError(f"{self.lane.name} runs but has closed its port.{self._tail(process)}")
            if await watchdog.has_stalled():
                return ServerExitedError(
                    f"{self.lane.name} hangs: {self.lane.in_flight} requests in flight, and nothing has moved for "
                    f"{self.config.stall_timeout_sec:.0f} s (stall_timeout_sec).{self._tail(process)}"
                )

    def _early_exit(self, code: int, process: ServerProcess) -> ServerStartError:
        error = self._start_error(f"exited with code {code} before it was ready", process)
        if code == EXIT_USAGE and self.may_drop_flags():
            return error
        if code in _HOPELESS_EXITS:
            raise error
        return error

    def may_drop_flags(self) -> bool:
        """Whether the command will be another one the next time, after the server refused its flags."""
        return False

    def start_failed(self) -> None:
        """The server did not become ready, and is started again if it may be."""

    def _start_error(self, words: str, process: ServerProcess) -> ServerStartError:
        hint = start_hint(process.log_tail())
        return ServerStartError(f"{self.lane.name} did not start: {words}.{hint}{self._tail(process)}")

    def _tail(self, process: ServerProcess) -> str:
        tail = "\n".join(process.log_tail().splitlines()[-_MESSAGE_LINES:])
        return f" Its log, {self.log_path}, ends:\n{self._without_key(tail)}"

    def _without_key(self, text: str) -> str:
        return text.replace(self.api_key, "[key]")


async def _refuses(port: int) -> bool:
    """Whether nobody listens; a connection that only takes long is no refusal."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    writer.close()
    return False


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now; a clash is seen when the server starts, and another one tried."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
