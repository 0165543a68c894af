"""How a job's end becomes a task's."""

import json

import msgspec
import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow_task import make_context, make_job

from airflow_provider_rollout import exceptions
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.manifest import RankManifest
from airflow_provider_rollout.operators.finish import announce, check_event, is_to_be_resumed, read_result, summary

JOB = {"job_id": "j", "rank": 2, "checkpoints": "/c", "handle": None}


def make_manifest(**fields) -> RankManifest:
    """What a rank would have written."""
    values = {
        "rank": 0,
        "world_size": 4,
        "fingerprint": "f" * 64,
        "output": "/out",
        "outputs": [],
        "epoch": 1,
        "finished_at": "",
    }
    return RankManifest(**{**values, **fields})


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"status": "failed"}, exceptions.RolloutFailed),
        ({"status": "failed", "exit_code": 75}, exceptions.RolloutFailed),
        ({"status": "failed", "error_class": "FailureBudgetError", "exit_code": 1}, exceptions.RolloutFailed),
        ({"status": "failed", "error_class": "ConfigError", "exit_code": 2}, exceptions.RolloutConfigError),
        ({"status": "failed", "error_class": "ShardError", "exit_code": 1}, exceptions.RolloutConfigError),
        ({"status": "failed", "error_class": "BadRowError", "exit_code": 1}, exceptions.RolloutConfigError),
        ({"status": "failed", "error_class": "FingerprintMismatchError"}, exceptions.RolloutConfigError),
        ({"status": "lost"}, exceptions.RolloutJobLost),
        ({"status": "lost", "exit_code": 2}, exceptions.RolloutConfigError),
        ({"status": "interrupted", "exit_code": 143}, exceptions.RolloutJobLost),
        ({"status": "cancelled"}, exceptions.RolloutCancelled),
        ({"status": "timeout"}, exceptions.RolloutTimeout),
        ({"status": "error"}, exceptions.RolloutJobLost),
        ({"status": "of another version"}, exceptions.RolloutFailed),
    ],
)
def test_every_end_has_its_exception(event, kind):
    """What cannot succeed at the second try is not retried; everything else resumes."""
    with pytest.raises(kind, match=r"job j of rank 2.*why") as caught:
        check_event({"job": JOB, "reason": "why", **event})
    assert type(caught.value) is kind


@pytest.mark.parametrize("event", [None, "success", {}, {"status": "succeeded"}])
def test_what_is_no_event_of_a_job_is_refused(event):
    """A trigger of another version, or Airflow's own marker."""
    with pytest.raises(exceptions.RolloutFailed, match="no event"):
        check_event(event)


def test_a_failure_carries_the_end_of_the_jobs_log():
    """Nobody has to log in to the machine."""
    event = {"status": "failed", "job": JOB, "reason": "x", "exit_code": 1, "log_tail": "CUDA out of memory"}
    with pytest.raises(exceptions.RolloutFailed, match=r"exit code 1; the end of its log:\nCUDA out of memory"):
        check_event(event)


def test_the_result_is_small_however_large_the_run(tmp_path):
    """XCom is a row in a database, and 64 KiB are its end on MySQL."""
    causes = {f"Error{number}: {'long ' * 1000}": number for number in range(10_000)}
    manifest = make_manifest(documents_in=10**9, documents_written=10**9, top_causes=causes, outputs=["x"] * 10_000)
    result = summary(make_job(tmp_path), manifest, resumed=5)
    assert len(json.dumps(result)) < 4096
    assert max(result["top_causes"].values()) == 9999
    assert result["resumed"] == 5


async def test_the_consumers_of_an_asset_are_told_rows_and_manifest(tmp_path):
    """The event of each outlet bears them."""
    context = make_context()
    asset = Asset("answers")
    announce(
        context,
        [asset, "no asset"],
        summary(make_job(tmp_path), make_manifest(documents_in=3, documents_written=3), resumed=0),
    )
    assert context["outlet_events"] == {asset: context["outlet_events"][asset]}
    extra = context["outlet_events"][asset].extra
    assert (extra["rows"], extra["fingerprint"]) == (3, "f" * 64)
    assert extra["manifest"].endswith("manifests/00000.json")


def test_a_manifest_is_read_from_the_state(tmp_path):
    """The truth lives there, not in the event."""
    path = tmp_path / layout.rank_manifest(0)
    path.parent.mkdir()
    path.write_bytes(msgspec.json.encode(make_manifest(documents_in=3)))
    assert read_result(make_job(tmp_path), None).documents_in == 3


def test_a_manifest_that_is_gone_or_broken_is_told_apart(tmp_path):
    """The first is final, the second may pass."""
    with pytest.raises(exceptions.RolloutFailed, match="is gone"):
        read_result(make_job(tmp_path), None)
    path = tmp_path / layout.rank_manifest(0)
    path.parent.mkdir()
    path.write_bytes(b"{")
    with pytest.raises(exceptions.RolloutJobLost, match="cannot be read"):
        read_result(make_job(tmp_path), None)


def test_a_cancelled_task_is_not_started_again_by_airflow():
    """A person stopped it."""
    assert issubclass(exceptions.RolloutCancelled, AirflowFailException)


@pytest.mark.parametrize(
    ("status", "reattached", "resumed"),
    [
        ("cancelled", True, True),
        ("interrupted", True, True),
        ("lost", True, True),
        ("failed", True, False),
        ("succeeded", True, False),
        ("cancelled", False, False),
        ("lost", False, False),
    ],
)
def test_a_job_of_an_earlier_try_that_is_still_dying_is_resumed(status, reattached, resumed):
    """Clearing a deferred task cancels its job while the new try already watches it."""
    assert is_to_be_resumed({"status": status, "job": {**JOB, "reattached": reattached}}) is resumed
