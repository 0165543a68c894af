"""Sends each request to the replica with the fewest in flight, and again as long as that makes sense.

Receives: final payloads.        Hands on: InferenceResults, InferenceErrors (recorded), ServerErrors (fatal).
Invariants: a wait before a retry holds no slot. A request that was cut off by a server's death is replayed and the attempt not
counted; after one death it runs among few, after two alone, and after the third it is quarantined. One replica beyond repair is
logged; all of them end the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import (
    EndpointUnavailableError,
    InferenceError,
    QuarantinedError,
    RequestTimeoutError,
    ServerError,
    TruncatedError,
)
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.result import InferenceResult
from airflow_provider_rollout.engine.serving.base import InferenceServer
from airflow_provider_rollout.engine.serving.fleet import make_servers
from airflow_provider_rollout.engine.serving.lane import Lane, Life
from airflow_provider_rollout.engine.serving.retry import RetryPolicy, wait_before_retry_s
from airflow_provider_rollout.engine.serving.trial import ALONE_AT_DEATHS, DEATHS_OF_ONE, Trial
from airflow_provider_rollout.engine.serving.window import SlotWindow
from airflow_provider_rollout.engine.serving.wire import WireRequest, another_sample, encode_request

__all__ = ["Dispatcher", "open_dispatcher"]

_log = logging.getLogger(__name__)

_DEATH_NOTICE_S = 3.0  # a broken connection precedes the exit of the process; vLLM takes 1.7 s
_PROBE_S = 1.0
_PROBATION_REQUESTS = 16  # so many run beside each other that have seen one death: few suspects if they see another
_REFUSED_ATTEMPTS = (
    3  # of a 403 or 404 while the endpoint has answered nothing else, until it is taken for its own fault
)
_UNSENT_PER_ATTEMPT = 10  # an endpoint that answers probes but takes no connections must not keep a request for ever


class Dispatcher:
    """Asks the model; made by ``open_dispatcher``.

    Attributes:
        server_start_s: seconds from the start until the first replica was ready; None before.
    """

    def __init__(self, config: InferenceConfig, metrics: MetricsKeeper) -> None:
        self.server_start_s: float | None = None
        self._config = config
        self._metrics = metrics
        self._policy = RetryPolicy.from_config(config)
        self._window = SlotWindow(
            config.max_concurrent_generations, is_adaptive=config.adaptive_concurrency, queues=metrics.queues
        )
        self._probation = asyncio.Semaphore(_PROBATION_REQUESTS)
        self._opened_at_s = time.monotonic()
        self._changed = asyncio.Event()
        self._free: list[Lane] = []
        self._servers: Sequence[InferenceServer] = ()

    async def generate(self, payload: Mapping[str, Any]) -> InferenceResult:
        """Ask the model once, with all the attempts that this takes.

        Args:
            payload: OpenAI-style and complete, with model and defaults; it is only read.

        Raises:
            InferenceError: the request has no result; to be recorded.
            ServerError: no replica will answer any more; fatal.
        """
        trial = Trial()
        try:
            request = encode_request(payload, use_chat=self._config.use_chat)
            while True:
                try:
                    return await self._attempt(request, trial)
                except TruncatedError as error:
                    request = self._asked_anew(error, payload, trial)
                except InferenceError as error:
                    await self._recover(error, request, trial)
                self._metrics.count("requests_retried")
        except InferenceError as error:
            error.attempts = trial.attempts
            self._metrics.count("requests_failed")
            raise

    async def wait_ready(self) -> None:
        """Wait until one replica answers.

        Raises:
            ServerError: none ever will.
        """
        while not any(server.lane.is_open for server in self._servers):
            self._raise_if_hopeless()
            await self._changed.wait()

    def log_tail(self) -> str | None:
        """The last lines of the log of a server that failed, or else of the first server; None for endpoints."""
        for server in sorted(self._servers, key=lambda server: server.lane.failure is None):
            return server.log_tail()
        return None

    def use(self, servers: Sequence[InferenceServer]) -> None:
        """Take the servers whose lanes to send to."""
        self._servers = servers

    def lane_changed(self) -> None:
        """A lane opened, closed, or is free again; whoever waits looks anew."""
        self._free = [server.lane for server in self._servers if server.lane.is_open and not server.lane.is_reserved]
        if self._free and self.server_start_s is None:
            self.server_start_s = time.monotonic() - self._opened_at_s
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    async def _attempt(self, request: WireRequest, trial: Trial) -> InferenceResult:
        if trial.deaths == 0:
            return await self._among_others(request, trial)
        if trial.deaths < ALONE_AT_DEATHS:
            async with self._probation:
                return await self._among_others(request, trial)
        return await self._alone(request, trial)

    async def _among_others(self, request: WireRequest, trial: Trial) -> InferenceResult:
        async with self._window:
            return await self._send(await self._free_lane(), request, trial)

    async def _alone(self, request: WireRequest, trial: Trial) -> InferenceResult:
        async with self._window:
            lane = await self._free_lane()
            lane.is_reserved = True
            self.lane_changed()
            try:
                while not await self._is_at_rest(lane):
                    if lane.failure is not None:
                        raise EndpointUnavailableError(f"{lane.name} is beyond repair", attempts=0)
                return await self._send(lane, request, trial)
            finally:
                lane.is_reserved = False
                self.lane_changed()

    async def _is_at_rest(self, lane: Lane) -> bool:
        """Whether nothing else can be to blame if the server dies now; waits for a change if not."""
        doubtful_s = lane.doubtful_until_s - time.monotonic()
        if lane.is_open and not lane.in_flight and doubtful_s <= 0:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(doubtful_s if doubtful_s > 0 else None):
                await self._changed.wait()
        return False

    async def _free_lane(self) -> Lane:
        while not self._free:
            self._raise_if_hopeless()
            await self._changed.wait()
        return min(self._free, key=_requests_in_flight) if len(self._free) > 1 else self._free[0]

    def _raise_if_hopeless(self) -> None:
        failures = [server.lane.failure for server in self._servers if server.lane.failure is not None]
        if failures and len(failures) == len(self._servers):
            raise type(failures[0])(*failures[0].args) from failures[0]

    async def _send(self, lane: Lane, request: WireRequest, trial: Trial) -> InferenceResult:
        client, life = lane.client, lane.life
        if client is None:
            raise EndpointUnavailableError(f"{lane.name} has just gone", attempts=0)
        trial.lane, trial.life, trial.window_index = lane, life, self._window.window_index
        lane.in_flight += 1
        try:
            with self._metrics.queues.track("in_flight"):
                result = await client.complete(request)
        except EndpointUnavailableError as error:
            self._metrics.count("requests_sent", error.attempts)
            if not lane.is_owned and lane.life is life:
                lane.close()
            raise
        except BaseException as error:
            self._metrics.count("requests_sent")
            if _is_overload(error):  # said before the slot is free, or it would be handed out under the old limit
                self._window.overloaded(trial.window_index)
            raise
        finally:
            lane.in_flight -= 1
            if lane.is_reserved:
                self.lane_changed()
        life.complete()
        lane.has_answered = True
        return self._accepted(result)

    def _accepted(self, result: InferenceResult) -> InferenceResult:
        """Count an answer, and judge whether a truncated one is a result."""
        count = self._metrics.count
        self._window.succeeded()
        count("requests_sent")
        count("requests_succeeded")
        for name in ("prompt_tokens", "completion_tokens"):
            tokens = result.usage.get(name)
            if type(tokens) is int:
                count(name, tokens)
        if result.finish_reason == "length" or any(choice.finish_reason == "length" for choice in result.choices):
            count("truncated")
            if self._config.on_truncated != "keep":
                raise TruncatedError(
                    "the answer stopped at the token limit; raise max_tokens or model_max_context", status=200
                )
        return result

    def _asked_anew(self, error: TruncatedError, payload: Mapping[str, Any], trial: Trial) -> WireRequest:
        """The request for another sample in place of a truncated one.

        Raises:
            TruncatedError: there is to be none.
        """
        trial.failed(error, time.monotonic())
        other = another_sample(payload, trial.attempts)
        if other is None or self._config.on_truncated == "fail" or trial.attempts >= self._policy.max_attempts:
            raise error
        return encode_request(other, use_chat=self._config.use_chat)

    async def _recover(self, error: InferenceError, request: WireRequest, trial: Trial) -> None:
        """Wait until the request may be sent again.

        Raises:
            InferenceError: it may not.
        """
        trial.failed(error, time.monotonic())
        wait_s = self._wait_s(error, request, trial)
        if trial.may_be_death(error) and trial.life is not None and trial.lane is not None:
            if await self._was_death(error, trial, trial.lane, trial.life, wait_s):
                return
            wait_s = None if wait_s is None else 0.0
        if wait_s is None:
            raise error
        await asyncio.sleep(wait_s)

    def _wait_s(self, error: InferenceError, request: WireRequest, trial: Trial) -> float | None:
        if error.status in {401, 403, 404} and self._blames_endpoint(error, request, trial):
            return 0.0 if trial.lane is None or trial.lane.failure else self._policy.base_s
        if error.attempts == 0 and trial.unsent < _UNSENT_PER_ATTEMPT * self._policy.max_attempts:
            return 0.0 if trial.lane is None or not trial.lane.is_open else self._policy.base_s * random.random()
        return wait_before_retry_s(error, attempts=trial.attempts, policy=self._policy, random01=random.random())

    def _blames_endpoint(self, error: InferenceError, request: WireRequest, trial: Trial) -> bool:
        """Whether a 401, 403 or 404 is about the endpoint and not about this payload; a lane that is sure to refuse all is failed.

        A moderation filter answers 403, and a rollout may ask for an adapter that is not there: where the endpoint has answered
        anything else well, or the model is not the job's, the request alone is at fault.
        """
        lane = trial.lane
        if lane is None or (error.status == 404 and request.model != self._config.model_name_or_path):
            return False
        if error.status != 401:
            if lane.has_answered:
                return False
            if trial.attempts < min(_REFUSED_ATTEMPTS, self._policy.max_attempts):
                return True
        advice = (
            f"it does not serve {self._config.model_name_or_path!r} at this path; check model_name_or_path, endpoint_url and use_chat"
            if error.status == 404
            else "check InferenceConfig.api_key or the connection's password"
        )
        if lane.failure is None:
            lane.fail(ServerError(f"{lane.name} refuses every request with {error.status}: {advice}. It said: {error}"))
            _log.error("%s", lane.failure)
        return True

    async def _was_death(
        self, error: InferenceError, trial: Trial, lane: Lane, life: Life, wait_s: float | None
    ) -> bool:
        """Give the server the time to die, at least ``wait_s``; whether it did, so that the request is sent again for nothing.

        Raises:
            QuarantinedError: it was the death too many.
        """
        if lane.life is life:
            lane.doubtful_until_s = time.monotonic() + _DEATH_NOTICE_S
        is_broken = isinstance(error, EndpointUnavailableError) and not await _still_answers(lane, life)
        has_ended = await life.ends_within(
            max(_DEATH_NOTICE_S, wait_s or 0.0) if is_broken or wait_s is None else wait_s
        )
        if not trial.settle():
            return has_ended and error.attempts == 0
        if trial.deaths >= DEATHS_OF_ONE:
            raise QuarantinedError(
                f"in flight at {trial.deaths} server deaths, at the last one alone; it is not sent again. "
                "The server's log tells what it did"
            )
        return True


async def _still_answers(lane: Lane, life: Life) -> bool:
    """Whether the server that has just broken a connection goes on serving; a process that has died refuses at once."""
    client = lane.client
    if client is None or lane.life is not life:
        return False
    try:
        async with asyncio.timeout(_PROBE_S):
            return (await client.models()).status < 500
    except (InferenceError, TimeoutError):
        return False


def _is_overload(error: BaseException) -> bool:
    return isinstance(error, RequestTimeoutError) or (isinstance(error, InferenceError) and error.status in {429, 503})


def _requests_in_flight(lane: Lane) -> int:
    return lane.in_flight


@asynccontextmanager
async def open_dispatcher(
    config: InferenceConfig, *, metrics: MetricsKeeper, log_folder: Path
) -> AsyncIterator[Dispatcher]:
    """Start the servers and send to them for as long as the block runs; the block begins at once, see ``wait_ready``.

    Args:
        config: which servers, and how to ask them.
        metrics: counts and gauges.
        log_folder: receives the servers' logs where ``config.server_log_folder`` is not set.
    """
    dispatcher = Dispatcher(config, metrics)
    servers = make_servers(config, metrics=metrics, log_folder=log_folder, on_change=dispatcher.lane_changed)
    dispatcher.use(servers)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        keepers = [group.create_task(_keep(server)) for server in servers]
        try:
            yield dispatcher
        except Exception as error:  # noqa: BLE001 - kept out of the group, which would wrap it
            failure = error
        finally:
            for keeper in keepers:
                keeper.cancel()
    if failure is not None:
        raise failure


async def _keep(server: InferenceServer) -> None:
    try:
        await server.keep()
    except ServerError as error:
        _log.error("%s is beyond repair: %s", server.lane.name, error)
        server.lane.fail(error)
