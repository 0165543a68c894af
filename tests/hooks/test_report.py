"""Progress in the log and in metrics."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity, Progress
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.hooks.report import COUNTERS, GAUGES, TIMINGS, ProgressReport


class Stats:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, float] = {}
        self.timings: dict[str, list[float]] = {}
        self.tags: list[dict[str, str]] = []

    def incr(self, stat, count=1, *, tags=None) -> None:
        self.counters[stat] = self.counters.get(stat, 0) + count
        self.tags.append(tags)

    def gauge(self, stat, value, *, tags=None) -> None:
        self.gauges[stat] = value

    def timing(self, stat, dt, *, tags=None) -> None:
        self.timings.setdefault(stat, []).append(dt)


RECORD = AttemptRecord(
    job_id="j",
    rank=0,
    epoch=1,
    state="running",
    fingerprint="f",
    process=ProcessIdentity(host="h", boot_id="b", pid=1, start_time_s=1.0),
    started_at="",
    updated_at="",
    queues={"in_flight": 7},
    server_start_s=1.5,
    elapsed_s=20.0,
)
STARTING = Progress("starting", "job j is starting")
LOG = logging.getLogger("test")


def running(**totals) -> Progress:
    """A look at a job with these totals."""
    return Progress("running", "x", msgspec.structs.replace(RECORD, totals=totals))


def succeeded(**totals) -> Progress:
    """The last look."""
    return Progress("succeeded", "x", msgspec.structs.replace(RECORD, state="succeeded", totals=totals))


@pytest.fixture
def store(tmp_path):
    """Where the job's state is."""
    return ObjectStore.open(str(tmp_path))


async def test_counters_grow_by_what_is_new(store):
    """Their sum is the job's own total, also when the first look comes late."""
    report = ProgressReport(LOG, stats=(stats := Stats()))
    for look in (STARTING, running(requests_sent=3), running(requests_sent=3), running(requests_sent=10, cache_hits=1)):
        await report(look, store)
    assert stats.counters == {"rollout.requests_sent": 10, "rollout.cache_hits": 1}
    assert stats.gauges["rollout.in_flight"] == 7


async def test_a_restarted_watcher_goes_on_where_the_first_one_stopped(store):
    """Nothing is counted twice, and nothing is left out."""
    await ProgressReport(LOG, stats=(first := Stats()))(running(requests_sent=1000), store)
    report = ProgressReport(LOG, stats=(second := Stats()))
    await report(running(requests_sent=1000), store)
    await report(running(requests_sent=1001), store)
    assert (first.counters, second.counters) == ({"rollout.requests_sent": 1000}, {"rollout.requests_sent": 1})


async def test_each_duration_is_told_once(store):
    """Whoever tells it; at the end nothing is in flight any more."""
    for _ in range(2):
        report = ProgressReport(LOG, stats=(stats := Stats()))
        await report(running(), store)
        await report(succeeded(), store)
        assert stats.gauges["rollout.in_flight"] == 0
    assert stats.timings == {}
    await ProgressReport(LOG, stats=(stats := Stats()))(
        Progress("succeeded", "x", msgspec.structs.replace(RECORD, job_id="k", state="succeeded")), store
    )
    assert stats.timings == {"rollout.server_start_duration": [1500.0], "rollout.job_duration": [20000.0]}


async def test_tags_are_of_few_values(store):
    """The task and its rank; never a run or a document."""
    report = ProgressReport(LOG, {"dag_id": "d", "task_id": "t"}, stats=(stats := Stats()))
    await report(running(requests_sent=1), store)
    assert stats.tags == [{"dag_id": "d", "task_id": "t", "rank": "0"}]


async def test_metrics_that_are_off_write_nothing(store):
    """Airflow's metrics are off by default; then the watch has nothing to note."""
    await ProgressReport(LOG)(running(requests_sent=1), store)
    assert await store.list() == []


async def test_a_store_that_fails_does_not_end_the_watch(tmp_path):
    """What could not be noted is told with the next look."""
    (tmp_path / "reported").write_text("a file where a folder should be")
    report = ProgressReport(LOG, stats=(stats := Stats()))
    broken = ObjectStore.open(str(tmp_path))
    await report(running(requests_sent=1), broken)
    assert stats.counters == {}
    (tmp_path / "reported").unlink()
    await report(running(requests_sent=2), broken)
    assert stats.counters == {"rollout.requests_sent": 2}


class SlowHandler(logging.Handler):
    """Writes as a trigger's log does while the triggerer reads nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.5)


class SlowStats(Stats):
    """Sends as Airflow's client does while it looks up an address."""

    def incr(self, stat, count=1, *, tags=None) -> None:
        time.sleep(0.5)
        super().incr(stat, count, tags=tags)


async def test_a_slow_log_and_slow_metrics_do_not_hold_up_the_loop(store):
    """The loop belongs to all tasks that wait in this triggerer."""
    log = logging.getLogger("slow")
    log.setLevel(logging.INFO)
    log.addHandler(SlowHandler())
    late_s: list[float] = []

    async def beat() -> None:
        while True:
            due_s = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            late_s.append(time.monotonic() - due_s)

    async with asyncio.TaskGroup() as group:
        heart = group.create_task(beat())
        await ProgressReport(log, stats=(stats := SlowStats()))(running(requests_sent=1), store)
        heart.cancel()
    assert stats.counters == {"rollout.requests_sent": 1}
    assert max(late_s) < 0.3


SEND_TO_NOBODY = """
import asyncio, logging, sys
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk.configuration import conf
from airflow.sdk.observability.metrics import stats_utils
from hooks.test_report import succeeded
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.hooks.report import ProgressReport

stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
assert type(stats._get_backend()).__name__ == sys.argv[2], stats._get_backend()
asyncio.run(ProgressReport(logging.getLogger("test"))(succeeded(requests_sent=1), ObjectStore.open(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("host", "client"), [("127.0.0.1", "SafeStatsdLogger"), ("no-such-host.invalid", "NoStatsLogger")]
)
def test_a_daemon_that_is_away_changes_nothing(tmp_path, host, client):
    """Airflow's own client of StatsD, with nobody at the other end; and what Airflow takes in its place when there is no such host."""
    settings = {"STATSD_ON": "True", "STATSD_HOST": host, "STATSD_PORT": "9"}
    environment = {**os.environ, **{f"AIRFLOW__METRICS__{name}": value for name, value in settings.items()}}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    command = [sys.executable, "-W", "ignore", "-c", SEND_TO_NOBODY, str(tmp_path), client]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_is_in_the_readme():
    """The table of metrics is complete."""
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    assert [name for name in (*COUNTERS, *GAUGES, *TIMINGS) if f"`rollout.{name}`" not in readme] == []
