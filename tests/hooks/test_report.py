"""Progress in the log and in metrics."""

import logging

from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity, Progress
from airflow_provider_rollout.hooks.report import ProgressReport


class Stats:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, float] = {}

    def incr(self, stat, count=1, **_) -> None:
        self.counters[stat] = self.counters.get(stat, 0) + count

    def gauge(self, stat, value, **_) -> None:
        self.gauges[stat] = value


def running(**totals) -> Progress:
    """A look at a job with these totals."""
    record = AttemptRecord(
        job_id="j",
        rank=0,
        epoch=1,
        state="running",
        fingerprint="f",
        process=ProcessIdentity(host="h", boot_id="b", pid=1, start_time_s=1.0),
        started_at="",
        updated_at="",
        totals=totals,
        queues={"in_flight": 7},
    )
    return Progress("running", "x", record)


STARTING = Progress("starting", "job j is starting")


def test_counters_grow_by_what_is_new():
    """Their sum is the job's own total."""
    report = ProgressReport(logging.getLogger("test"), stats := Stats())
    for look in (STARTING, running(requests_sent=3), running(requests_sent=3), running(requests_sent=10, cache_hits=1)):
        report(look)
    assert stats.counters == {"rollout.requests_sent": 10, "rollout.cache_hits": 1}
    assert stats.gauges["rollout.in_flight"] == 7


def test_a_restarted_watcher_does_not_count_twice():
    """It begins with what it finds."""
    report = ProgressReport(logging.getLogger("test"), stats := Stats())
    report(running(requests_sent=1000))
    report(running(requests_sent=1001))
    assert stats.counters == {"rollout.requests_sent": 1}


def test_airflows_own_metrics_take_it():
    """Whether they go anywhere or not."""
    report = ProgressReport(logging.getLogger("test"))
    report(STARTING)
    report(running(requests_sent=1))
