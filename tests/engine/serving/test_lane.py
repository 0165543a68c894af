"""Open, closed, dead."""

from __future__ import annotations

import asyncio

from airflow_provider_rollout.engine.exceptions import ServerError
from airflow_provider_rollout.engine.serving.client import EndpointClient
from airflow_provider_rollout.engine.serving.lane import Lane, Life


async def test_a_life_ends_once_and_whoever_waits_learns_it():
    """Also whoever comes later."""
    life = Life()
    assert not await life.ends_within(0.01)
    waiting = asyncio.create_task(life.ends_within(5))
    await asyncio.sleep(0)
    life.end()
    assert await waiting
    ended_at_s = life.ended_at_s
    life.end()
    assert life.ended_at_s == ended_at_s
    assert await life.ends_within(0)


async def test_a_lane_tells_every_change_and_each_opening_begins_a_new_life():
    """The dispatcher wakes whoever waits."""
    changes = []
    lane = Lane("x", is_owned=True, on_change=lambda: changes.append(lane.is_open))
    client = EndpointClient("http://127.0.0.1:1", api_key=None, timeout_s=None)
    first = lane.life
    lane.open(client)
    assert lane.life is not first
    assert not await lane.closes_within(0.01)
    lane.close()
    assert await lane.closes_within(0.01)
    lane.fail(ServerError("broken"))
    assert changes == [True, False, False]
    assert str(lane.failure) == "broken"
