"""A server that runs already, somewhere: nothing is started, only asked whether it answers.

Receives: one of ``endpoint_urls``.        Hands on: an open lane while it answers.
Invariants: asked with the same credentials and the same base as the requests. Wrong credentials are found before the first document.
One endpoint that is gone is asked until it is back; when none has answered for ``server_start_timeout_sec``, the job ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import ConfigError, InferenceError, ServerExitedError, ServerStartError
from airflow_provider_rollout.engine.serving.base import InferenceServer
from airflow_provider_rollout.engine.serving.client import EndpointClient
from airflow_provider_rollout.engine.serving.lane import Lane
from airflow_provider_rollout.engine.serving.watchdog import Watchdog, answers_canary

__all__ = ["EndpointServer"]

_log = logging.getLogger(__name__)

_FIRST_PROBE_S, _SLOWEST_PROBE_S = 0.05, 5.0


class EndpointServer(InferenceServer):
    """One URL."""

    def __init__(
        self, config: InferenceConfig, *, url: str, api_key: str | None, on_change: Callable[[], None]
    ) -> None:
        try:
            self._client = EndpointClient(url, api_key=api_key, timeout_s=config.request_timeout)
        except ValueError as error:
            raise ConfigError(f"InferenceConfig.endpoint_url: not a URL: {error}") from None
        super().__init__(self._client.url, is_owned=False, on_change=on_change)
        self._config = config
        self._needs_proof = False
        self.siblings: Sequence[Lane] = ()

    def log_tail(self) -> str | None:
        """None: the log is elsewhere."""
        return None

    async def keep(self) -> None:
        """Ask until it answers, open the lane, and again whenever the dispatcher or the watchdog has closed it.

        Raises:
            ServerStartError: it refuses the credentials, or has never answered.
            ServerExitedError: no endpoint has answered for ``server_start_timeout_sec``.
        """
        async with self._client:
            while self.lane.failure is None:
                await self._until_answers()
                self.lane.open(self._client)
                watchdog = Watchdog(self.lane, self._client, self._config)
                while not await self.lane.closes_within(watchdog.tick_s):
                    if await watchdog.has_stalled():
                        _log.warning(
                            "%s hangs with %d requests in flight; they are sent again",
                            self.lane.name,
                            self.lane.in_flight,
                        )
                        self._needs_proof = True
                        self.lane.close()
                        await self._client.abort()

    async def _until_answers(self) -> None:
        config, started_s, asked = self._config, time.monotonic(), 0
        wait_s = _FIRST_PROBE_S
        while self.lane.failure is None:
            words = await self._ask()
            if words is None:
                return
            asked += 1
            others_answer = any(lane.is_open for lane in self.siblings)
            is_late = time.monotonic() - started_s >= config.server_start_timeout_sec
            if (is_late or asked == config.server_ready_max_attempts) and not others_answer:
                kind = ServerExitedError if self.lane.has_answered else ServerStartError
                raise kind(
                    f"{self.lane.name} does not answer, nor does any other endpoint: {words}; check endpoint_url and the server"
                )
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, max(config.server_ready_delay_sec, _SLOWEST_PROBE_S if asked > 20 else 0.0))

    async def _ask(self) -> str | None:
        """None when requests may go there, or why not.

        Raises:
            ServerStartError: they never may.
        """
        name, model = self.lane.name, self._config.model_name_or_path
        try:
            answer = await self._client.models()
        except InferenceError as error:
            return str(error)
        if answer.status in {401, 403}:
            raise ServerStartError(
                f"{name}/models answers {answer.status}: check InferenceConfig.api_key or the connection's password"
            )
        if 300 <= answer.status < 400:
            raise ServerStartError(
                f"{name}/models answers with a redirect; give the URL that it leads to as endpoint_url"
            )
        if answer.status >= 500:
            return f"/models answers {answer.status}"
        if answer.names and model not in answer.names and not self.lane.has_answered:
            _log.warning("%s lists %d models, and %r is not among them", name, len(answer.names), model)
        if self._needs_proof:
            if not await answers_canary(self._client, self._config, self._config.stall_timeout_sec or 60.0):
                return "/models answers, but no request does"
            self._needs_proof = False
        return None
