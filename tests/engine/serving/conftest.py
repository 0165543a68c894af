"""A dispatcher on real sockets and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.model_server import Running, chat

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.dispatch import Dispatcher, open_dispatcher


class Opened:
    """A dispatcher with its counts."""

    def __init__(self, dispatcher: Dispatcher, metrics: MetricsKeeper) -> None:
        self.generate = dispatcher.generate
        self.dispatcher = dispatcher
        self.totals = metrics.totals
        self.queues = metrics.queues

    async def ask(self, count: int, **parameters: Any) -> list[Any]:
        """Ask so many different questions at once; results and errors, in order."""
        questions = (self.generate(chat(f"doc {index} .", **parameters)) for index in range(count))
        return await asyncio.gather(*questions, return_exceptions=True)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Opened]]:
    """Open a dispatcher; on a running dummy, on URLs, or on a server of its own."""

    @asynccontextmanager
    async def open_it(*endpoints: Running | str, is_ready: bool = True, **values: Any) -> AsyncIterator[Opened]:
        urls = [endpoint if isinstance(endpoint, str) else endpoint.url for endpoint in endpoints]
        defaults: dict[str, Any] = {
            "server_type": "endpoint" if urls else "dummy",
            "model_name_or_path": "m",
            "endpoint_url": urls or None,
            "retry_backoff_base_sec": 0.01,
            "server_ready_delay_sec": 0.1,
        }
        metrics = MetricsKeeper()
        config = InferenceConfig(**{**defaults, **values})
        async with open_dispatcher(config, metrics=metrics, log_folder=tmp_path) as dispatcher:
            if is_ready:
                await dispatcher.wait_ready()
            yield Opened(dispatcher, metrics)

    return open_it
