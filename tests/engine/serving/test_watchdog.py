"""Progress, and the lack of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from servers.model_server import chat, run_dummy

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.serving.client import EndpointClient
from airflow_provider_rollout.engine.serving.lane import Lane
from airflow_provider_rollout.engine.serving.watchdog import Watchdog, answers_canary
from airflow_provider_rollout.engine.serving.wire import encode_request


def config(**values):
    """An endpoint's config."""
    return InferenceConfig(server_type="endpoint", endpoint_url="http://x", model_name_or_path="m", **values)


async def stalled_within(seconds, url, **values):
    """Whether the watchdog of a lane with one request in flight barks in that time."""
    async with EndpointClient(url, api_key=None, timeout_s=None) as client:
        lane = Lane("x", is_owned=False, on_change=lambda: None)
        lane.open(client)
        lane.in_flight = 1
        watchdog = Watchdog(lane, client, config(**values))
        try:
            async with asyncio.timeout(seconds):
                while not await watchdog.has_stalled():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True


async def test_a_server_whose_counter_stands_still_has_stalled():
    """Within the time that was set, not much later."""
    async with run_dummy() as dummy:
        assert await stalled_within(0.8, dummy.url, stall_timeout_sec=0.4)
        assert not await stalled_within(0.3, dummy.url, stall_timeout_sec=0.4)
        assert not await stalled_within(0.5, dummy.url, stall_timeout_sec=None)


async def test_tokens_that_move_are_progress():
    """Though no request ends."""
    async with AsyncExitStack() as stack:
        dummy = await stack.enter_async_context(run_dummy(token_ms=20))
        client = await stack.enter_async_context(EndpointClient(dummy.url, api_key=None, timeout_s=None))
        request = encode_request(chat("x", max_tokens=200, ignore_eos=True), use_chat=True)
        long = asyncio.create_task(client.complete(request))
        assert not await stalled_within(1.5, dummy.url, stall_timeout_sec=0.6)
        long.cancel()


@pytest.mark.parametrize(("rule", "is_alive"), [({"action": "hang"}, False), ({"action": "slow"}, True)])
async def test_a_tiny_request_tells_where_there_is_no_counter(rule, is_alive):
    """As with endpoints of other makers."""
    async with run_dummy(rule) as dummy, EndpointClient(dummy.url, api_key=None, timeout_s=None) as client:
        assert await answers_canary(client, config(), 0.2) is is_alive
        assert await answers_canary(client, config(use_chat=False), 0.2) is is_alive


async def test_requests_that_a_living_server_has_forgotten_are_not_waited_for_without_end():
    """Where there is no counter and only tiny requests are answered, after six times the limit."""
    forgetful = [{"match": "doc", "action": "hang"}]
    async with run_dummy(*forgetful, no_metrics=True) as dummy:
        assert not await stalled_within(1.0, dummy.url, stall_timeout_sec=0.2)
        assert await stalled_within(1.0, dummy.url, stall_timeout_sec=0.1)


@pytest.mark.parametrize(("status", "is_alive"), [(400, True), (429, True), (500, False)])
async def test_a_refusal_of_the_tiny_request_is_an_answer_and_a_500_is_none(status, is_alive):
    """A model may want other parameters."""
    rule = {"action": "status", "status": status}
    async with run_dummy(rule) as dummy, EndpointClient(dummy.url, api_key=None, timeout_s=None) as client:
        assert await answers_canary(client, config(), 1.0) is is_alive
