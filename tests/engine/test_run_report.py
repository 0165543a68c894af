"""Rules of what people and scripts read about a run."""

import io

import pytest
from rich.console import Console

from airflow_provider_rollout.engine import run_report
from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity, Progress
from airflow_provider_rollout.engine.run_state import RankStatus
from airflow_provider_rollout.engine.storage.manifest import RankManifest


def record(**changes) -> AttemptRecord:
    """An attempt in the middle of its work."""
    values = {
        "job_id": "j",
        "rank": 0,
        "epoch": 2,
        "state": "running",
        "fingerprint": "f",
        "process": ProcessIdentity("gpu-[1]", "boot", 1, 0.0),
        "started_at": "2026-01-01T00:00:00+00:00",
        "updated_at": "2026-01-01T00:00:05+00:00",
        "documents_total": 2000,
        "documents_done": 1500,
        "documents_resumed": 300,
        "totals": {"cache_hits": 7, "documents_failed": 3, "requests_sent": 1300},
        "rates_per_s": {"requests_succeeded": 12.34, "completion_tokens": 4567.0},
        "eta_s": 3723.0,
    }
    return AttemptRecord(**{**values, **changes})


def manifest(rank: int, **changes) -> RankManifest:
    """A rank that is done."""
    values = {
        "rank": rank,
        "world_size": 2,
        "fingerprint": "f",
        "output": "s3://bucket/out",
        "outputs": [],
        "epoch": 2,
        "finished_at": "2026-01-01T00:00:00+00:00",
        "documents_in": 1000,
        "documents_written": 990,
        "documents_failed": 7,
        "documents_dropped": 3,
        "completion_tokens": 5000,
        "top_causes": {"BadRequestError [400]": 7},
    }
    return RankManifest(**{**values, **changes})


def shown(renderable) -> str:
    """What a wide terminal shows."""
    out = io.StringIO()
    Console(file=out, width=250, color_system=None).print(renderable)
    return out.getvalue()


def status(verdict: str, found: AttemptRecord | None, **more) -> RankStatus:
    """A rank as a watcher judged it."""
    return RankStatus(0, Progress(verdict, "because [it] is so", found), **more)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723.4, "1:02:03")]
)
def test_a_length_of_time_reads_as_a_clock(seconds, text):
    """An unknown time is a dash, never a zero."""
    assert run_report.duration(seconds) == text


def test_a_running_rank_shows_rates_and_its_heartbeat():
    """The row answers: how far, how fast, how long still, does it live."""
    text = shown(
        run_report.status_table("s3://b/[x]", [status("running", record(), heartbeat_age_s=3.0, has_moved=True)])
    )
    for part in ("s3://b/[x]", "1,500/2,000", "12.3", "4,567", "1:02:03", "3 s"):
        assert part in text
    assert "> 3 s" not in text
    assert "because" not in text


def test_a_heartbeat_that_was_not_seen_to_change_is_a_lower_bound():
    """One look cannot tell an age."""
    assert "> 3 s" in shown(run_report.status_table("u", [status("running", record(), heartbeat_age_s=3.0)]))


def test_a_lost_rank_shows_no_rate_of_the_past():
    """Rates of a dead job are no news; what it reached is."""
    text = shown(run_report.status_table("u", [status("lost", record(), heartbeat_age_s=99.0, has_moved=True)]))
    assert "12.3" not in text
    assert "1,500/2,000" in text
    assert "because [it] is so" in text


def test_a_failed_rank_shows_the_first_line_of_its_error():
    """A server's log tail does not tear the table; JSON has all of it."""
    failed = record(state="failed", error="ServerStartError: no GPU\n  log line\n" + "x" * 1000)
    table = shown(run_report.status_table("u", [status("failed", failed)]))
    assert "ServerStartError: no GPU" in table
    assert "log line" not in table
    value = run_report.status("u", [status("failed", failed)])
    assert value["ranks"][0]["attempt"]["error"] == failed.error


def test_a_rank_without_an_attempt_is_shown():
    """World size counts it, so it is not silent."""
    text = shown(run_report.status_table("u", [status("starting", None)]))
    assert "starting" in text
    assert run_report.status("u", [status("starting", None)])["ranks"][0]["attempt"] is None


def test_a_report_adds_up_its_ranks():
    """Totals are the sums of what is listed."""
    attempts = {0: [record(epoch=1, state="interrupted", error="SIGTERM"), record()]}
    facts = ("s3://b/state", attempts, [manifest(0), manifest(1)], 2)
    value = run_report.report(*facts)
    assert value["total"]["documents_in"] == 2000
    assert value["total"]["top_causes"] == {"BadRequestError [400]": 14}
    assert (value["ranks_done"], value["world_size"]) == (2, 2)
    text = shown(run_report.report_table(*facts))
    for part in (
        "2 of 2 ranks done",
        "2,000",
        "1,980",
        "10 k",
        "BadRequestError [400]",
        "14",
        "interrupted",
        "gpu-[1]",
    ):
        assert part in text


def test_a_report_of_a_run_that_has_written_nothing_is_a_report():
    """No rank done, and the size not known yet."""
    assert "0 of ? ranks done" in shown(run_report.report_table("u", {}, [], None))


def test_the_lines_of_a_log_hold_the_same_facts():
    """Without a terminal the same is told in words."""
    line = run_report.progress_line(record(documents_total=None))
    assert line == (
        "rank 0 running: 1,500/? documents, 12.3 requests/s, 4,567 tokens/s, 7 cache hits, 3 failed, 1:02:03 left"
    )
    assert "1000 documents in, 990 written, 7 failed (BadRequestError [400]: 7), 3 dropped" in run_report.summary_line(
        manifest(0)
    )
