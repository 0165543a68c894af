"""One replica as the dispatcher sees it: may requests go there, how many are there, which life of the server is it.

Receives: ups and downs from the replica's keeper, requests from the dispatcher.        Hands on: EndpointClients.
Invariants: a lane is open exactly while its replica is known to answer; a reserved lane takes only the request that reserved it;
a life ends once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_rollout.engine.exceptions import ServerError
from airflow_provider_rollout.engine.serving.client import EndpointClient

__all__ = ["Lane", "Life"]


class Life:
    """One run of a replica, from ready to dead.

    Attributes:
        completed: requests that succeeded in it.
        completed_at_s: when the last of them did, on the monotonic clock.
        ended_at_s: when it ended, on the monotonic clock; None while it lasts.
    """

    def __init__(self) -> None:
        self.completed = 0
        self.completed_at_s = 0.0
        self.ended_at_s: float | None = None
        self._ended = asyncio.Event()

    def complete(self) -> None:
        """A request has succeeded."""
        self.completed += 1
        self.completed_at_s = time.monotonic()

    def end(self) -> None:
        """It is over."""
        if self.ended_at_s is None:
            self.ended_at_s = time.monotonic()
            self._ended.set()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for its end, that long at most; whether it has ended."""
        if self.ended_at_s is None and seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
            except TimeoutError:
                return False
        return self.ended_at_s is not None


class Lane:
    """The way to one replica.

    Attributes:
        name: for messages, "vllm replica 0" or the endpoint's URL.
        is_owned: whether the job started the server, and so sees it die.
        in_flight: requests on their way.
        is_reserved: one request wants the replica for itself.
        client: None while closed.
        life: the run of the server that is open, or was last.
        failure: why it will never open again.
        has_answered: whether any request has succeeded there.
        doubtful_until_s: on the monotonic clock; until then the server may be about to die of a request that it has failed.
    """

    def __init__(self, name: str, *, is_owned: bool, on_change: Callable[[], None]) -> None:
        self.name = name
        self.is_owned = is_owned
        self.in_flight = 0
        self.is_reserved = False
        self.client: EndpointClient | None = None
        self.life = Life()
        self.failure: ServerError | None = None
        self.has_answered = False
        self.doubtful_until_s = 0.0
        self._on_change = on_change
        self._closed = asyncio.Event()
        self._closed.set()

    @property
    def is_open(self) -> bool:
        """Whether requests may go there."""
        return self.client is not None

    def open(self, client: EndpointClient) -> None:
        """The replica answers."""
        self.client = client
        self.life = Life()
        self.doubtful_until_s = 0.0
        self._closed.clear()
        self._on_change()

    def close(self) -> None:
        """The replica does not answer, or may not."""
        self.client = None
        self._closed.set()
        self._on_change()

    def fail(self, error: ServerError) -> None:
        """The replica is beyond repair."""
        self.failure = error
        self.close()

    async def closes_within(self, seconds: float) -> bool:
        """Wait until somebody closes the lane, that long at most; whether it is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True
