"""A job as a launcher starts it: a process, a stored spec, an exit code."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from servers.rollout_job import JobProcess, State, dummy_process

from airflow_provider_rollout.engine.config import FailureBudget, InferenceConfig, JobSpec
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import latest_attempt


@pytest.fixture(scope="module")
def server():
    with dummy_process("--latency-ms", "300") as process:
        yield process


def make_spec(tmp_path, server, **changes):
    source = tmp_path / "in.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(60)))
    config = {
        "server_type": "endpoint",
        "endpoint_url": server.url,
        "model_name_or_path": "dummy",
        "max_concurrent_generations": 4,
    }
    values = {"job_id": "job", "source": [str(source)], "output": str(tmp_path / "out"), "prompt_template": "{text}"}
    return JobSpec(**{**values, "config": InferenceConfig(**{**config, **changes.pop("config", {})}), **changes})


def run(tmp_path, spec):
    """Exit code and newest record."""
    code = JobProcess(spec, log=tmp_path / "job.log").wait()
    newest = asyncio.run(latest_attempt(State(spec).store, 0))
    return code, newest[0] if newest else None


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"prompt_template": None, "rollout": "no_such_module:rollout"}, 2, "no_such_module"),
        ({"prompt_template": None, "rollout": "json:dumps"}, 2, "async def dumps"),
        ({"prompt_template": "{text"}, 2, "prompt_template"),
        ({"source": ["/nowhere/*.jsonl"]}, 1, "/nowhere/*.jsonl"),
        ({"config": {"api_key": "NO_SUCH_VARIABLE"}}, 2, "NO_SUCH_VARIABLE"),
        ({"shared_context": "json:no_such_name"}, 2, "no_such_name"),
    ],
)
def test_what_is_wrong_is_recorded_where_a_watcher_looks(tmp_path, server, changes, code, message):
    """One clear error in the log and in the attempt; no traceback."""
    exit_code, record = run(tmp_path, make_spec(tmp_path, server, **changes))
    log = (tmp_path / "job.log").read_text()
    assert message in record.error
    assert (record.state, record.exit_code, exit_code) == ("failed", exit_code, record.exit_code)
    assert message in log
    assert exit_code == code
    assert "Traceback" not in log


def test_a_cancel_marker_stops_the_job_within_ten_seconds(tmp_path, server):
    """State cancelled, and resumable."""
    spec = make_spec(tmp_path, server, config={"max_concurrent_generations": 1})
    job = JobProcess(spec, log=tmp_path / "job.log")
    state = State(spec)
    deadline_s = time.monotonic() + 20
    while state.newest_job_id() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    asyncio.run(state.store.put(layout.cancel(spec.job_id), b""))
    began_s = time.monotonic()
    assert job.wait() == 143
    assert time.monotonic() - began_s < 10
    record, _ = asyncio.run(latest_attempt(state.store, 0))
    assert record.state == "cancelled"
    resumed = make_spec(tmp_path, server, job_id="resumed", config={"max_concurrent_generations": 60})
    assert run(tmp_path, resumed)[0] == 0, (tmp_path / "job.log").read_text()[-2000:]
    assert [row.text for row in state.rows()] == [f"t{number}" for number in range(60)]


def test_a_job_over_its_budget_fails_with_the_causes(tmp_path, server):
    """The message holds the most frequent ones."""
    spec = make_spec(
        tmp_path, server, prompt_template="{topic}", failure_budget=FailureBudget(max_consecutive_failures=7)
    )
    code, record = run(tmp_path, spec)
    assert (code, record.state, record.error_class) == (1, "failed", "FailureBudgetError")
    assert "KeyError: 7" in record.error
