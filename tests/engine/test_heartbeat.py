"""What a running attempt says of itself, and what it hears."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_rollout.engine.config import FailureBudget
from airflow_provider_rollout.engine.exceptions import (
    FencedError,
    JobCancelledError,
    JobInterruptedError,
    ServerStartError,
    primary_cause,
)
from airflow_provider_rollout.engine.failure_policy import FailureKeeper
from airflow_provider_rollout.engine.heartbeat import Heartbeat
from airflow_provider_rollout.engine.stop import Stop
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt, latest_attempt
from airflow_provider_rollout.engine.storage.object_store import ObjectStore


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(str(tmp_path))


async def make(store, **changes):
    attempt = await Attempt.claim(store, rank=0, job_id="job", lost_after_s=changes.pop("lost_after_s", 0.4))
    values = {"log_interval_s": 60.0, "on_progress": None, **changes}
    return Heartbeat(attempt, store, FailureKeeper(FailureBudget()), Stop(), **values)


async def newest(store):
    return (await latest_attempt(store, 0))[0]


async def test_the_record_is_rewritten_for_as_long_as_the_block_runs(store):
    """A watcher sees it change."""
    heartbeat = await make(store)
    async with heartbeat.beating():
        await asyncio.sleep(0.5)
        heartbeat.metrics.count("requests_sent", 3)
        await asyncio.sleep(0.3)
    record = await newest(store)
    assert record.heartbeat >= 3
    assert record.totals == {"requests_sent": 3}
    assert record.state == "running"


async def test_a_fence_ends_the_block(store):
    """Whoever is replaced stops at its next beat, and leaves the newer record alone."""
    heartbeat = await make(store)
    await store.create(layout.attempt(0, 2), b"{}")
    with pytest.raises(ExceptionGroup) as caught:
        async with heartbeat.beating():
            await asyncio.sleep(30)
    fence = primary_cause(caught.value)
    assert isinstance(fence, FencedError)
    await heartbeat.end_with(fence)
    assert await store.get(layout.attempt(0, 2)) == b"{}"


@pytest.mark.parametrize("is_signalled", [False, True])
async def test_a_cancel_is_heard_and_outweighs_the_signal_that_comes_with_it(store, is_signalled):
    """At the next beat, or at once when a signal came; without grace."""
    heartbeat = await make(store, lost_after_s=60.0 if is_signalled else 0.4)
    stop = heartbeat._stop
    async with heartbeat.beating():
        await asyncio.sleep(0.2)
        await store.put(layout.cancel("job"), b"")
        if is_signalled:
            stop.ask(JobInterruptedError("SIGTERM"), 10.0)
        async with asyncio.timeout(2):
            while not isinstance(stop.error, JobCancelledError):
                await asyncio.sleep(0.02)
        assert stop.grace_s == 0.0
    await heartbeat.end_with(stop.error)
    record = await newest(store)
    assert (record.state, record.exit_code, record.error_class) == ("cancelled", 143, "JobCancelledError")


@pytest.mark.parametrize("steps", range(5))
async def test_a_block_that_ends_as_a_stop_is_asked_for_does_end(store, steps):
    """A cancellation that meets the stop is not swallowed, at whichever step of the loop."""
    heartbeat = await make(store, lost_after_s=60.0)
    async with asyncio.timeout(5), heartbeat.beating():
        await asyncio.sleep(0.2)
        heartbeat._stop.ask(JobInterruptedError("SIGTERM"), 0.0)
        for _ in range(steps):
            await asyncio.sleep(0)


async def test_the_cancel_of_another_job_is_not_ours(store):
    """A resume is not stopped by the marker of the job before."""
    await store.put(layout.cancel("earlier"), b"")
    heartbeat = await make(store)
    async with heartbeat.beating():
        await asyncio.sleep(0.3)
    assert heartbeat._stop.error is None


class Server:
    """Servers that are never ready, or fail."""

    server_start_s = None

    def __init__(self, error=None):
        self.error = error

    async def wait_ready(self):
        if self.error:
            raise self.error
        await asyncio.sleep(60)

    def log_tail(self):
        return "CUDA out of memory"


async def test_a_starting_server_shows_in_the_state_and_its_failure_in_the_last_record(store):
    """With the tail of its log."""
    heartbeat = await make(store)
    async with heartbeat.serving(Server()):
        assert heartbeat.record().state == "starting_server"
    error = ServerStartError("not ready")
    with pytest.raises(ExceptionGroup):
        async with heartbeat.serving(Server(error)):
            await asyncio.sleep(30)
    await heartbeat.end_with(error)
    record = await newest(store)
    assert (record.state, record.error, record.server_log_tail) == ("failed", "not ready", "CUDA out of memory")


@pytest.mark.alone
async def test_progress_is_reported_about_once_a_second(store):
    """For the bar on a terminal."""
    seen = []
    heartbeat = await make(store, on_progress=seen.append)
    async with heartbeat.beating():
        await asyncio.sleep(2.3)
    assert len(seen) == 2
