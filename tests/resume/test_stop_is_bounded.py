"""A job that is told to stop is gone within its bound, whatever it waits for."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import msgspec
import pytest
from servers.faulty_s3 import Fault
from servers.rollout_job import JobProcess, State, dummy_process

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import latest_attempt

BOUND_S = 30.0


@pytest.fixture(scope="module")
def server():
    with dummy_process("--latency-ms", "100") as process:
        yield process


def make_spec(tmp_path, server, output):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(2000)))
    config = InferenceConfig(
        server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy", max_concurrent_generations=4
    )
    return JobSpec(
        job_id="job", source=[str(source)], output=output, config=config, prompt_template="{text}", records_per_chunk=20
    )


def test_a_job_that_waits_for_another_attempt_stops_at_once(tmp_path, server):
    """There is nothing to store, and the wait may last a minute."""
    spec = make_spec(tmp_path, server, str(tmp_path / "out"))
    state = State(spec)
    other = AttemptRecord(
        job_id="other", rank=0, epoch=1, state="running", fingerprint="", started_at="", updated_at="",
        process=ProcessIdentity(host="elsewhere", boot_id="other", pid=1, start_time_s=0.0),
    )  # fmt: skip
    asyncio.run(state.store.create(layout.attempt(0, 1), msgspec.json.encode(other)))
    job = JobProcess(spec, log=tmp_path / "job.log")
    log = tmp_path / "job.log"
    deadline_s = time.monotonic() + 20
    while "waiting" not in log.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    began_s = time.monotonic()
    job.signal(signal.SIGTERM)
    assert job.wait() == 143, log.read_text()
    assert time.monotonic() - began_s < 5
    assert "Traceback" not in log.read_text()
    assert asyncio.run(latest_attempt(state.store, 0))[0] == other


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["hang", "drop"])
def test_a_store_that_hangs_does_not_hold_a_job_that_is_to_stop(s3, faulty_s3, tmp_path, server, kind):
    """Exit code 143 within the bound; the next job resumes."""
    spec = make_spec(tmp_path, server, f"s3://{s3.new_bucket()}/run")
    job = JobProcess(spec, s3.options(endpoint_url=faulty_s3.endpoint_url), log=tmp_path / "job.log")
    deadline_s = time.monotonic() + 30
    while not any("PUT" in request and "chunks" in request for request in faulty_s3.seen):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    faulty_s3.faults = [Fault(".", kind, times=10**9)]
    began_s = time.monotonic()
    job.signal(signal.SIGTERM)
    assert job.wait() == 143, (tmp_path / "job.log").read_text()[-3000:]
    assert time.monotonic() - began_s < BOUND_S
    assert "Traceback" not in (tmp_path / "job.log").read_text()
