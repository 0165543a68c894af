"""Rules of judging a job from its record, its launcher and the watcher's own clock."""

import msgspec
import pytest

from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity, judge


def record(**changes) -> AttemptRecord:
    """The record of a running attempt of job "j"."""
    values = {
        "job_id": "j",
        "rank": 0,
        "epoch": 2,
        "state": "running",
        "fingerprint": "f",
        "process": ProcessIdentity("host", "boot", 1, 0.0),
        "started_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }
    return AttemptRecord(**{**values, **changes})


def verdict(found: AttemptRecord | None, liveness: str, unchanged_s: float = 0.0) -> str:
    """Judge with sixty seconds of patience."""
    return judge(found, job_id="j", liveness=liveness, unchanged_s=unchanged_s, lost_after_s=60.0).verdict


@pytest.mark.parametrize("found", [None, record(job_id="an earlier job", state="succeeded")])
@pytest.mark.parametrize(
    ("liveness", "unchanged_s", "expected"),
    [
        ("running", 0.0, "starting"),
        ("running", 3600.0, "starting"),
        ("unknown", 60.0, "starting"),
        ("unknown", 61.0, "lost"),
        ("gone", 0.0, "lost"),
    ],
)
def test_a_job_without_a_record_of_its_own_is_starting_until_it_is_lost(found, liveness, unchanged_s, expected):
    """The record of an earlier job says nothing about this one."""
    assert verdict(found, liveness, unchanged_s) == expected


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "interrupted"])
@pytest.mark.parametrize("liveness", ["running", "gone", "unknown"])
def test_an_ended_record_is_believed_whatever_the_launcher_says(state, liveness):
    """The job's own last word is the truth; its process may take a moment to go."""
    assert verdict(record(state=state), liveness, 1e6) == state


@pytest.mark.parametrize("state", ["starting_server", "running", "draining"])
@pytest.mark.parametrize(
    ("liveness", "unchanged_s", "expected"),
    [
        ("running", 1e6, "running"),
        ("gone", 0.0, "lost"),
        ("unknown", 60.0, "running"),
        ("unknown", 60.1, "lost"),
    ],
)
def test_a_silent_record_means_lost_only_when_no_launcher_vouches_for_it(state, liveness, unchanged_s, expected):
    """A launcher that says "running" outweighs a record that stands still."""
    assert verdict(record(state=state), liveness, unchanged_s) == expected


def test_a_failed_job_says_why():
    """The reason is the record's error."""
    judged = judge(
        record(state="failed", error="StoreError: no bucket"),
        job_id="j",
        liveness="gone",
        unchanged_s=0.0,
        lost_after_s=60.0,
    )
    assert judged.reason == "StoreError: no bucket"
    assert judged.ended


@pytest.mark.parametrize(("name", "ended"), [("starting", False), ("running", False), ("lost", True)])
def test_only_starting_and_running_go_on(name, ended):
    """Everything else needs somebody to act."""
    found = {"starting": None, "running": record(), "lost": record()}[name]
    judged = judge(found, job_id="j", liveness="gone" if ended else "running", unchanged_s=0.0, lost_after_s=60.0)
    assert (judged.verdict, judged.ended) == (name, ended)


def test_a_record_survives_its_stored_form():
    """The heartbeat object is read by other processes."""
    written = record(documents_total=5, totals={"cache_hits": 1}, eta_s=None, manifest={"rows": 5})
    assert msgspec.json.decode(msgspec.json.encode(written), type=AttemptRecord) == written
