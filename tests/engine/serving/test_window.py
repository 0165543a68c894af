"""Slots: fixed, or found by feeling the way."""

from __future__ import annotations

import asyncio

from airflow_provider_rollout.engine.metrics import QueueSizesKeeper
from airflow_provider_rollout.engine.serving.window import AdaptiveLimit, SlotWindow


def test_the_limit_doubles_with_every_full_window_until_the_server_is_overloaded():
    """Slow start: no burst, and no long way to a large limit either."""
    limit = AdaptiveLimit(1000)
    assert limit.limit == 8
    for _ in range(8):
        limit.succeeded(was_full=True)
    assert limit.limit == 16


def test_a_window_that_is_not_full_does_not_raise_the_limit():
    """Where too few requests come, a success proves nothing about more."""
    limit = AdaptiveLimit(1000)
    for _ in range(100):
        limit.succeeded(was_full=False)
    assert limit.limit == 8


def test_refusals_of_one_window_lower_the_limit_once():
    """Thirty requests refused together are one sign of overload."""
    limit = AdaptiveLimit(1000)
    for _ in range(56):
        limit.succeeded(was_full=True)
    window_index = limit.window_index
    for _ in range(30):
        limit.overloaded(window_index)
    assert limit.limit == 57
    for _ in range(57):
        limit.succeeded(was_full=True)
    assert limit.limit == 58, "after the first overload one window adds one slot"


def test_a_step_too_far_costs_little_and_a_server_that_has_become_weaker_much():
    """Around what a server bears the limit stays near it; refused again at once, it falls by halves."""
    limit = AdaptiveLimit(1000)
    for _ in range(56):
        limit.succeeded(was_full=True)
    for expected in (57, 28, 14):
        limit.overloaded(limit.window_index)
        assert limit.limit == expected
    for _ in range(40):
        limit.succeeded(was_full=True)
    assert limit.limit == 16
    limit.overloaded(limit.window_index)
    assert limit.limit == 15


def test_the_limit_stays_between_one_and_the_ceiling():
    """A dead server does not stop the job from trying, a fast one does not exceed what was allowed."""
    limit = AdaptiveLimit(10)
    for _ in range(100):
        limit.succeeded(was_full=True)
    assert limit.limit == 10
    for _ in range(20):
        limit.overloaded(limit.window_index)
    assert limit.limit == 1


async def test_slots_go_to_the_waiting_in_order_and_none_is_lost_to_a_cancel():
    """A waiter that leaves, before or just after its turn, passes the slot on."""
    queues = QueueSizesKeeper()
    window = SlotWindow(1, is_adaptive=False, queues=queues)
    order: list[int] = []

    async def work(index: int) -> None:
        async with window:
            order.append(index)
            await asyncio.sleep(0)

    async with window:
        tasks = [asyncio.create_task(work(index)) for index in range(5)]
        await asyncio.sleep(0)
        assert queues.sizes["waiting"] == 5
        tasks[1].cancel()
    tasks[0].cancel()  # its turn has been set, it has not run yet
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [2, 3, 4]
    assert queues.sizes["waiting"] == 0


async def test_all_may_leave_at_once():
    """As when a job is told to stop: holders and waiters are cancelled in one step, and each ends as cancelled."""
    queues = QueueSizesKeeper()
    window = SlotWindow(2, is_adaptive=False, queues=queues)

    async def work() -> None:
        async with window:
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(work()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True))
    assert queues.sizes["waiting"] == 0
    async with asyncio.timeout(1), window:
        pass
