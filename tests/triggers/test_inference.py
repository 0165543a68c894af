"""The trigger: what it carries, when it fires, whom it stops."""

import asyncio
import json
import logging
import time

import msgspec
import pytest
from airflow_task import make_handle, make_job, write_record

from airflow_provider_rollout.triggers.inference import MIN_DEFER_S, InferenceTrigger


class SlowCallbacks(logging.Handler):
    """Collects what asyncio says of callbacks that took too long."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "took" in record.getMessage():
            self.seen.append(record.getMessage())


def make_trigger(tmp_path, **more) -> InferenceTrigger:
    """A trigger that was deferred long ago."""
    job = msgspec.to_builtins(make_job(tmp_path, handle=make_handle(tmp_path, host="elsewhere")))
    values = {
        "vllm_conn_id": None,
        "aws_conn_id": None,
        "poll_interval": 0.02,
        "deferred_at": time.time() - MIN_DEFER_S,
    }
    return InferenceTrigger(job=job, **{**values, **more})


async def first_event(trigger: InferenceTrigger) -> dict:
    """What it fires."""
    async for event in trigger.run():
        return event.payload
    raise AssertionError("the trigger ended without an event")


def test_a_trigger_survives_the_database(tmp_path):
    """Class path and arguments are JSON, and make the same trigger again."""
    trigger = make_trigger(tmp_path, deadline=12.5, cancel_on_kill=False)
    path, arguments = trigger.serialize()
    assert path == "airflow_provider_rollout.triggers.inference.InferenceTrigger"
    again = InferenceTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()


async def test_a_trigger_fires_once_when_the_job_has_ended(tmp_path):
    """It sees the end in the job's state."""
    write_record(tmp_path)

    async def job_ends() -> None:
        await asyncio.sleep(0.2)
        write_record(tmp_path, state="succeeded")

    async with asyncio.TaskGroup() as group:
        group.create_task(job_ends())
        events = [event.payload async for event in make_trigger(tmp_path).run()]
    assert [event["status"] for event in events] == ["succeeded"]


async def test_the_first_event_keeps_its_distance_from_the_deferral(tmp_path):
    """Airflow fails a task that resumes while its worker still winds up."""
    write_record(tmp_path, state="succeeded")
    deferred_at = time.time() - MIN_DEFER_S + 0.6
    await first_event(make_trigger(tmp_path, deferred_at=deferred_at))
    assert time.time() - deferred_at >= MIN_DEFER_S


async def test_clocks_that_differ_do_not_hold_the_event_back_for_long(tmp_path):
    """The worker's clock may be hours ahead of the triggerer's."""
    write_record(tmp_path, state="succeeded")
    trigger = make_trigger(tmp_path, deferred_at=time.time() + 7200)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await first_event(trigger)
    assert trigger.deferred_at > time.time()


async def test_a_kill_stops_the_job(tmp_path):
    """By its marker, whatever machine it is on."""
    await make_trigger(tmp_path).on_kill()
    assert (tmp_path / "cancel/job-1").exists()


async def test_a_kill_leaves_the_job_alone_when_asked_to(tmp_path):
    """``cancel_on_kill=False``."""
    await make_trigger(tmp_path, cancel_on_kill=False).on_kill()
    assert not (tmp_path / "cancel").exists()


async def test_the_end_of_a_triggerer_does_not_touch_the_job(tmp_path):
    """Cleanup runs at every restart of a triggerer."""
    write_record(tmp_path)
    task = asyncio.create_task(first_event(trigger := make_trigger(tmp_path)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await trigger.cleanup()
    assert not (tmp_path / "cancel").exists()


async def test_two_triggerers_may_watch_the_same_job(tmp_path):
    """A triggerer that was taken for dead goes on for a while."""
    write_record(tmp_path, state="succeeded")
    events = await asyncio.gather(first_event(make_trigger(tmp_path)), first_event(make_trigger(tmp_path)))
    assert [event["status"] for event in events] == ["succeeded", "succeeded"]


@pytest.mark.alone
async def test_a_trigger_does_not_block_the_loop_of_the_triggerer(tmp_path):
    """One slow trigger would hold up every other one; asyncio's own watchdog stays silent."""
    write_record(tmp_path)
    await make_trigger(tmp_path)._watcher().look()  # what is imported once is not what is measured
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.2
    watchdog = SlowCallbacks()
    logging.getLogger("asyncio").addHandler(watchdog)
    task = asyncio.create_task(first_event(make_trigger(tmp_path)))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    logging.getLogger("asyncio").removeHandler(watchdog)
    assert watchdog.seen == []
