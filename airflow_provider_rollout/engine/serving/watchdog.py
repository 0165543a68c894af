"""Is a replica that takes requests still getting anywhere?

Receives: a lane, its client.        Hands on: whether it hangs.
Invariants: health is progress: a request that ended, a token counter that grew, or, where a replica has no counter, a tiny request
that was answered. An open port and an answer of /health prove nothing. One long generation alone is no hang. Where only tiny requests have
been answered for very long, the others are lost: the server lives, and has forgotten them.
"""

from __future__ import annotations

import asyncio
import time

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import BadRequestError, InferenceError
from airflow_provider_rollout.engine.serving.client import EndpointClient
from airflow_provider_rollout.engine.serving.lane import Lane
from airflow_provider_rollout.engine.serving.wire import encode_request

__all__ = ["Watchdog", "answers_canary"]

_TICK_S = 5.0
_LOST_AFTER_STALLS = 6  # no generation takes six times what a stall does: an hour, by default


async def answers_canary(client: EndpointClient, config: InferenceConfig, timeout_s: float) -> bool:
    """Whether a request for one token is answered in time; a refusal for its parameters or for load counts as an answer."""
    question = {"messages": [{"role": "user", "content": "."}]} if config.use_chat else {"prompt": "."}
    request = encode_request(
        {"model": config.model_name_or_path, **question, "max_tokens": 1}, use_chat=config.use_chat
    )
    try:
        async with asyncio.timeout(timeout_s):
            await client.complete(request)
    except TimeoutError:
        return False
    except InferenceError as error:
        return isinstance(error, BadRequestError) or error.status == 429
    return True


class Watchdog:
    """Watches one life of a replica.

    Attributes:
        tick_s: how often to ask.
    """

    def __init__(self, lane: Lane, client: EndpointClient, config: InferenceConfig) -> None:
        self._lane = lane
        self._client = client
        self._config = config
        self._stall_s = config.stall_timeout_sec
        self.tick_s = _TICK_S if self._stall_s is None else min(_TICK_S, self._stall_s / 4)
        self._completed = 0
        self._tokens: float | None = None
        self._moved_at_s = self._ended_at_s = time.monotonic()

    async def has_stalled(self) -> bool:
        """Whether nothing has moved for ``stall_timeout_sec`` although requests are in flight; may take half that time to find out."""
        if self._stall_s is None:
            return False
        completed = self._lane.life.completed
        if self._lane.in_flight == 0 or completed != self._completed:
            self._completed = completed
            self._ended_at_s = time.monotonic()
            return self._has_moved()
        if self._idle_s() < self._stall_s / 2:
            return False
        tokens = await self._client.tokens_total()
        if tokens is None:
            if time.monotonic() - self._ended_at_s >= self._stall_s * _LOST_AFTER_STALLS:
                return True
            if await answers_canary(self._client, self._config, self._stall_s / 2):
                return self._has_moved()
        elif self._tokens is None:
            self._tokens = tokens
        elif tokens != self._tokens:
            return self._has_moved()
        return self._idle_s() >= self._stall_s and self._lane.life.completed == self._completed

    def _idle_s(self) -> float:
        return time.monotonic() - self._moved_at_s

    def _has_moved(self) -> bool:
        self._moved_at_s = time.monotonic()
        self._tokens = None
        return False
