"""What feeling the way costs: an adaptive window beside one that was set to what the server bears."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from servers.model_server import chat
from servers.rollout_job import dummy_process

BEARS = 32
SETTLE_S, MEASURE_S = 3.0, 4.0


async def requests_per_s(opened, url, **limits):
    """Requests answered per second once the window has settled, with more waiting than ever fit."""
    numbers = itertools.count()

    async def ask_on(it):
        while True:
            await it.generate(chat(f"question {next(numbers)}"))

    async with opened(url, model_name_or_path="m", **limits) as it, asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask_on(it)) for _ in range(120)]
        await asyncio.sleep(SETTLE_S)
        before = it.totals["requests_succeeded"]
        await asyncio.sleep(MEASURE_S)
        answered = it.totals["requests_succeeded"] - before
        assert it.totals["requests_failed"] == 0
        for task in tasks:
            task.cancel()
    return answered / MEASURE_S


@pytest.mark.alone
async def test_an_adaptive_window_settles_at_nine_tenths_of_the_servers_best(opened):
    """The server refuses more than 32 in flight; nothing fails. Both are measured against the same server, one after the other."""
    flags = ["--model", "m", "--latency-ms", "150", "--max-in-flight", str(BEARS)]
    with dummy_process(*flags) as server:
        before = await requests_per_s(opened, server.url, max_concurrent_generations=BEARS)
        adaptive = await requests_per_s(
            opened, server.url, max_concurrent_generations=500, adaptive_concurrency=True, retry_backoff_base_sec=0.5
        )
        after = await requests_per_s(opened, server.url, max_concurrent_generations=BEARS)
        refused = server.stats()["status_503"]
    best = (before + after) / 2  # what else the machine does changes meanwhile
    print(f"\nbest {best:.0f}/s, adaptive {adaptive:.0f}/s, share {adaptive / best:.3f}, refused {refused}")
    assert adaptive >= 0.9 * best
