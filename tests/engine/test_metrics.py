"""Rules of counting: totals for ever, rates over five minutes, gauges that cannot leak."""

import pytest

from airflow_provider_rollout.engine.metrics import WINDOW_S, MetricsKeeper, QueueSizesKeeper


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_rates_are_taken_over_the_last_five_minutes():
    """An hour of silence is not diluted by a fast start."""
    clock = Clock()
    keeper = MetricsKeeper(clock)
    for _ in range(360):  # an hour at ten a second
        clock.now_s += 10.0
        keeper.count("requests_sent", 100)
        keeper.snapshot()
    assert keeper.snapshot().rates_per_s["requests_sent"] == pytest.approx(10.0, rel=0.05)
    for _ in range(int(WINDOW_S / 10.0) + 1):
        clock.now_s += 10.0
        keeper.snapshot()
    snapshot = keeper.snapshot()
    assert snapshot.rates_per_s["requests_sent"] == 0.0
    assert snapshot.totals["requests_sent"] == 36_000
    assert snapshot.elapsed_s == pytest.approx(3600.0 + WINDOW_S + 10.0)


def test_the_first_seconds_have_a_rate_too():
    """A rate is counts over the time there has been."""
    clock = Clock()
    keeper = MetricsKeeper(clock)
    keeper.count("cache_hits", 6)
    clock.now_s += 2.0
    assert keeper.snapshot().rates_per_s["cache_hits"] == pytest.approx(3.0)


def test_a_snapshot_does_not_change():
    """A heartbeat that is being written is not altered by later counts."""
    keeper = MetricsKeeper(Clock())
    keeper.count("documents_written")
    snapshot = keeper.snapshot()
    keeper.count("documents_written")
    keeper.queues.set("waiting", 4)
    assert snapshot.totals == {"documents_written": 1}
    assert snapshot.queues == {}


def test_a_gauge_falls_back_when_its_block_fails():
    """What is counted in is counted out."""
    queues = QueueSizesKeeper()

    def fail_with_two_in_flight() -> None:
        with queues.track("in_flight"), queues.track("in_flight"):
            raise ValueError(queues.sizes["in_flight"])

    with pytest.raises(ValueError, match="2"):
        fail_with_two_in_flight()
    assert queues.sizes["in_flight"] == 0


def test_the_memory_of_rates_is_bounded():
    """A snapshot every second for a day keeps five minutes of marks."""
    clock = Clock()
    keeper = MetricsKeeper(clock)
    for _ in range(24 * 360):
        clock.now_s += 1.0
        keeper.snapshot()
    assert len(keeper._marks) <= WINDOW_S / 5.0 + 2
