"""Two hundred deferred tasks in one triggerer: their polls do not hold up its event loop."""

import json
import subprocess
import sys
import textwrap

import psutil
import pytest
from airflow_task import make_handle, write_record

pytestmark = pytest.mark.alone

TRIGGERS = 200

WATCH_MANY = """
import asyncio, json, logging, sys, time, warnings

warnings.simplefilter("ignore")
from airflow_provider_rollout.triggers.inference import InferenceTrigger

jobs, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
late, slow = [], []


class Slow(logging.Handler):
    def emit(self, record):
        slow.append(record.getMessage())


async def beat():
    while True:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        late.append(time.monotonic() - due)


async def main():
    loop = asyncio.get_running_loop()
    loop.set_debug(sys.argv[3] == "debug")
    loop.slow_callback_duration = 0.1
    logging.getLogger("asyncio").addHandler(Slow())
    polled = []

    async def watch(job):
        trigger = InferenceTrigger(job=job, vllm_conn_id=None, aws_conn_id=None, poll_interval=5.0)
        trigger.log.info = lambda *_: polled.append(1)
        async for _ in trigger.run():
            pass

    heart = asyncio.create_task(beat())
    tasks = []
    for job in jobs:
        tasks.append(asyncio.create_task(watch(job)))
        await asyncio.sleep(0)
    await asyncio.sleep(seconds)
    for task in (heart, *tasks):
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    late.sort()
    print(json.dumps({
        "polls": len(polled), "max_s": late[-1], "p99_s": late[int(len(late) * 0.99)], "slow": slow,
        "ended": sorted({type(item).__name__ for item in ended}),
    }))


asyncio.run(main())
"""


def watch_many(tmp_path, count: int, seconds: float, mode: str) -> dict:
    """Run the triggers in a process of their own, as the triggerer does."""
    me = psutil.Process()
    jobs = []
    for number in range(count):
        checkpoints = tmp_path / str(number)
        write_record(checkpoints, totals={"requests_sent": 5})
        handle = make_handle(checkpoints, pid=me.pid, create_time=me.create_time())
        jobs.append({"job_id": "job-1", "rank": 0, "checkpoints": str(checkpoints), "handle": handle})
    script = textwrap.dedent(WATCH_MANY)
    command = [sys.executable, "-c", script, json.dumps(jobs), str(seconds), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_two_hundred_triggers_keep_the_loop_free(tmp_path):
    """The loop is less than 100 ms late, all of them starting at once. Other programs may hold it up too, but not three times in a row."""
    late_s = []
    for number in range(3):
        seen = watch_many(tmp_path / str(number), TRIGGERS, 8.0, "plain")
        assert seen["ended"] == ["CancelledError"]
        assert seen["polls"] > 3 * TRIGGERS
        late_s.append(seen["max_s"])
        if late_s[-1] < 0.1:
            return
    raise AssertionError(f"the loop was late by {late_s} s")


def test_no_call_of_a_trigger_blocks_the_loop(tmp_path):
    """asyncio's own watch for slow callbacks reports none. It costs so much itself that it watches only a few triggers."""
    reported = []
    for number in range(3):
        seen = watch_many(tmp_path / str(number), 10, 6.0, "debug")
        reported.append(seen["slow"])
        if not seen["slow"]:
            return
    raise AssertionError(reported)
