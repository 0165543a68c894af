"""What arrives at a real StatsD daemon, and what consumers of the task's assets get."""

import pytest
from stack.scenario import scenario

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_the_numbers_at_the_daemon_are_those_of_the_manifest(stack, statsd, tmp_path):
    """Deferred, with failures and retries among the requests."""
    before = statsd.counters()
    faults = (
        '[{"match": "document 005", "action": "status", "status": 400},'
        ' {"match": "document 01", "action": "status", "status": 503, "first": 1, "retry_after": "0"}]'
    )
    with scenario(tmp_path, 30, "--faults", faults) as place:
        run = stack.run("deferred", **place.conf)
        run.wait()
        result, (attempt,) = run.result(), place.attempts()
        assert (result["documents_written"], result["documents_failed"]) == (29, 1)
        assert place.requests == 30 + 10 == result["requests_sent"]
    counted = {
        name.removeprefix("airflow.rollout."): value - before.get(name, 0.0)
        for name, value in statsd.counters().items()
        if name.startswith("airflow.rollout.")
    }
    for name in (
        "documents_written", "documents_failed", "requests_sent", "prompt_tokens", "completion_tokens",
    ):  # fmt: skip
        assert counted[name] == result[name], name
    assert counted["requests_retried"] == attempt.totals["requests_retried"] == 10
    assert counted["requests_failed"] == 1
    gauges, timers = statsd.gauges(), statsd.timers()
    for name in ("in_flight", "waiting", "requests_per_s", "prompt_tokens_per_s", "completion_tokens_per_s"):
        assert f"airflow.rollout.{name}" in gauges
    assert len(timers["airflow.rollout.job_duration"]) >= 1
    assert len(timers["airflow.rollout.server_start_duration"]) >= 1


def test_assets_link_and_log(stack, tmp_path):
    """An asset's event tells rows, manifest and fingerprint; the link leads to the task; its log has lines of progress."""
    with scenario(tmp_path, 8, "--latency-ms", 500) as place:
        run = stack.run("deferred", **place.conf)
        run.wait()
        result = run.result()
        events = stack.ask("GET", "assets/events", source_dag_id="deferred", source_run_id=run.run_id)["asset_events"]
        told = {"rows": 8, "manifest": result["manifest_uri"], "fingerprint": result["fingerprint"]}
        assert [{name: event["extra"].get(name) for name in told} for event in events] == [told]
        links = stack.ask("GET", f"dags/deferred/dagRuns/{run.run_id}/taskInstances/ask/links")
        assert f"/dags/deferred/runs/{run.run_id}" in links["extra_links"]["Rollout progress"].replace(
            "%3A", ":"
        ).replace("%2B", "+")
        assert "of 8 documents" in run.log()
