"""What arrives at a real StatsD daemon, and what consumers of the task's assets get."""

import json

import pytest
from stack.conftest import on_s3
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


@on_s3
def test_assets_lineage_link_and_log(stack, store_uri):
    """An asset's event tells rows, manifest and fingerprint, OpenLineage gets the datasets and the counts; the link leads to the task."""
    with scenario(store_uri, 8, "--latency-ms", 500) as place:
        run = stack.run("lineage", **place.conf)
        run.wait()
        result = run.result()
        events = stack.ask("GET", "assets/events", source_dag_id="lineage", source_run_id=run.run_id)["asset_events"]
        told = {"rows": 8, "manifest": result["manifest_uri"], "fingerprint": result["fingerprint"]}
        assert [{name: event["extra"].get(name) for name in told} for event in events] == [told]
        links = stack.ask("GET", f"dags/lineage/dagRuns/{run.run_id}/taskInstances/ask/links")
        assert f"/dags/lineage/runs/{run.run_id}" in links["extra_links"]["Rollout progress"].replace(
            "%3A", ":"
        ).replace("%2B", "+")
        assert "of 8 documents" in run.log()
        check_lineage(stack, place, result)


def check_lineage(stack, place, result) -> None:
    """The event of the task's end, as OpenLineage's own client wrote it, names what was read, written and asked."""
    lines = (stack.home / "lineage").read_text().splitlines()
    (event,) = [
        event
        for event in map(json.loads, lines)
        if event.get("eventType") == "COMPLETE" and event["job"]["name"] == "lineage.ask"
    ]
    bucket, _, key = place.root.removeprefix("s3://").partition("/")
    (read,), (written,) = event["inputs"], event["outputs"]
    assert (read["namespace"], read["name"]) == (f"s3://{bucket}", key)
    assert (written["namespace"], written["name"]) == (f"s3://{bucket}", f"{key}/answers")
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 8
    facet = event["run"]["facets"]["rollout"]
    assert (facet["model"], facet["serverType"], facet["fingerprint"]) == ("dummy", "endpoint", result["fingerprint"])
    assert facet["counts"] == {name: result[name] for name in facet["counts"]}
    assert facet["counts"]["documents_written"] == 8


def test_a_daemon_that_is_away_changes_nothing(stack, statsd, tmp_path):
    """Not for a run during which it goes away, nor for one that never sees it, whoever watches."""
    with scenario(tmp_path / "goes", 30, "--latency-ms", 500) as goes, scenario(tmp_path / "gone", 8) as gone:
        runs = [
            stack.run(dag_id, **goes.conf | {"output": f"{goes.output}-{dag_id}"}) for dag_id in ("deferred", "waiting")
        ]
        goes.wait_requests(20)
        statsd.stop()
        try:
            runs.append(stack.run("waiting", **gone.conf))
            for run in runs:
                run.wait()
        finally:
            statsd.start()
        assert (goes.requests, gone.requests) == (60, 8)
        assert [run.result()["documents_written"] for run in runs] == [30, 30, 8]
        assert [run.task()["try_number"] for run in runs] == [1, 1, 1]
        assert goes.jobs() == gone.jobs() == []
