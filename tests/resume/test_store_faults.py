"""A sick store or a full disk: a clear error or a resume, never a wrong manifest."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from servers.faulty_s3 import Fault
from servers.rollout_job import JobProcess, State, dummy_process

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.storage.attempt import latest_attempt
from airflow_provider_rollout.engine.storage.object_store import StoreOptions

pytestmark = pytest.mark.s3

COUNT = 300


@pytest.fixture(scope="module")
def server():
    with dummy_process("--latency-ms", "100") as process:
        yield process


@pytest.fixture
def make_spec(tmp_path, server):
    """A job on a bucket, or wherever the output is said to be."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(COUNT)))

    def make(output: str, in_flight: int = 20, **changes) -> JobSpec:
        config = InferenceConfig(
            server_type="endpoint",
            endpoint_url=server.url,
            model_name_or_path="dummy",
            max_concurrent_generations=in_flight,
        )
        values = {
            "job_id": "job",
            "source": [str(source)],
            "output": output,
            "config": config,
            "prompt_template": "{text}",
            "records_per_chunk": 50,
        }
        return JobSpec(**{**values, **changes})

    return make


def check_whole(state: State) -> None:
    """Every document once, in order, and a manifest that says so."""
    assert [row.text for row in state.rows()] == [f"t{number}" for number in range(COUNT)]
    manifest = state.manifest()
    assert manifest is not None
    assert (manifest.documents_in, manifest.documents_written) == (COUNT, COUNT)


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "job.log").read_text()


def test_every_third_request_refused_costs_time_and_nothing_else(s3, faulty_s3, make_spec, tmp_path):
    """503 SlowDown is retried wherever it comes."""
    faulty_s3.faults = [Fault(".", "status", times=10**9, every=3)]
    spec = make_spec(f"s3://{s3.new_bucket()}/run")
    job = JobProcess(spec, s3.options(endpoint_url=faulty_s3.endpoint_url), log=tmp_path / "job.log")
    assert job.wait(240) == 0, log_of(tmp_path)[-2000:]
    assert faulty_s3.faults[0].matched > 30
    check_whole(State(spec, s3.options()))


@pytest.mark.parametrize("away_s", [8.0, pytest.param(60.0, marks=[pytest.mark.kill, pytest.mark.timeout(400)])])
def test_a_store_that_is_away_for_a_while_is_waited_for(s3, faulty_s3, make_spec, tmp_path, away_s):
    """The job goes on when the store is back, and has lost nothing."""
    spec = make_spec(f"s3://{s3.new_bucket()}/run", in_flight=4)
    job = JobProcess(spec, s3.options(endpoint_url=faulty_s3.endpoint_url), log=tmp_path / "job.log")
    deadline_s = time.monotonic() + 30
    while not any("chunks" in request for request in faulty_s3.seen) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    faulty_s3.faults = [Fault(".", "drop", times=10**9)]
    threading.Timer(away_s, faulty_s3.faults.clear).start()
    assert job.wait(300) == 0, log_of(tmp_path)[-2000:]
    check_whole(State(spec, s3.options()))


def test_a_store_that_stays_away_ends_the_job_and_the_next_one_resumes(s3, faulty_s3, make_spec, tmp_path, server):
    """The error names the store; no manifest is written; nothing that was durable is asked again."""
    spec = make_spec(f"s3://{s3.new_bucket()}/run", in_flight=4)
    options = s3.options(endpoint_url=faulty_s3.endpoint_url, max_attempts=3)
    job = JobProcess(spec, options, log=tmp_path / "job.log")
    while not any("chunks" in request and "PUT" in request for request in faulty_s3.seen):
        time.sleep(0.1)
    faulty_s3.faults = [Fault(".", "drop", times=10**9)]
    assert job.wait(60) == 1
    assert f"{spec.output}/_rollout" in log_of(tmp_path)
    assert "Traceback" not in log_of(tmp_path)
    state = State(spec, s3.options())
    assert state.manifest() is None
    durable = len(state.durable_documents())
    before = server.stats()["requests"]
    resumed = make_spec(spec.output, job_id="resumed", attempt_lost_after_sec=1.0)
    assert JobProcess(resumed, s3.options(), log=tmp_path / "job.log").wait() == 0
    assert server.stats()["requests"] - before == COUNT - durable
    check_whole(state)


@pytest.mark.parametrize(
    ("bucket", "options", "message"),
    [
        ("no-such-bucket", {}, "the bucket does not exist"),
        (None, {"secret_access_key": "wrong-secret-text"}, "access denied"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_at_once(s3, make_spec, tmp_path, bucket, options, message):
    """One line, no secret, and nothing is asked."""
    spec = make_spec(f"s3://{bucket or s3.new_bucket()}/run")
    began_s = time.monotonic()
    assert JobProcess(spec, s3.options(**options), log=tmp_path / "job.log").wait() == 1
    assert time.monotonic() - began_s < 20
    log = log_of(tmp_path)
    assert message in log
    assert "wrong-secret-text" not in log
    assert "Traceback" not in log


def test_a_full_scratch_disk_ends_the_job_and_the_next_one_resumes(s3, make_spec, tmp_path):
    """The error names the folder; nothing is marked done that is not."""
    output = f"s3://{s3.new_bucket()}/run"
    spec = make_spec(output, records_per_chunk=1000)
    job = JobProcess(spec, s3.options(), log=tmp_path / "job.log", largest_file_bytes=100_000)
    assert job.wait() == 1
    assert "free space there" in log_of(tmp_path)
    state = State(spec, s3.options())
    assert state.manifest() is None
    resumed = make_spec(output, job_id="resumed", records_per_chunk=1000)
    assert JobProcess(resumed, s3.options(), log=tmp_path / "job.log").wait() == 0
    check_whole(state)


def test_scratch_that_cannot_be_written_is_not_used(s3, make_spec, tmp_path):
    """Another temporary folder serves as well: scratch holds no truth."""
    spec = make_spec(f"s3://{s3.new_bucket()}/run")
    environment = {"TMPDIR": str(tmp_path / "missing")}
    assert JobProcess(spec, s3.options(), log=tmp_path / "job.log", environment=environment).wait() == 0
    check_whole(State(spec, s3.options()))


def test_secrets_are_in_no_object_no_log_and_no_command_line(s3, make_spec, tmp_path, server):
    """Keys travel by environment alone."""
    spec = make_spec(f"s3://{s3.new_bucket()}/run", in_flight=5)
    options: StoreOptions = s3.options()
    job = JobProcess(spec, options, log=tmp_path / "job.log")
    command_line = Path(f"/proc/{job.process.pid}/cmdline").read_bytes()
    assert job.wait() == 0
    state = State(spec, options)
    secret = options.secret_access_key.encode()
    stored = {info.key: data for info, data in state.all_objects()}
    assert stored
    assert not [key for key, data in stored.items() if secret in data]
    assert secret not in command_line
    assert secret not in (tmp_path / "job.log").read_bytes()


def test_a_heartbeat_that_arrives_late_does_not_outlive_the_last_word(s3, faulty_s3, make_spec, tmp_path):
    """The newest record says how the attempt ended, whatever the network does with the one before."""
    spec = make_spec(f"s3://{s3.new_bucket()}/run", in_flight=300)
    assert JobProcess(spec, s3.options(), log=tmp_path / "job.log").wait() == 0
    faulty_s3.faults = [Fault("PUT .*attempts", "late", times=1, every=2)]
    job = JobProcess(spec, s3.options(endpoint_url=faulty_s3.endpoint_url), log=tmp_path / "job.log")
    assert job.wait() == 0, log_of(tmp_path)[-2000:]
    time.sleep(2.5)
    record, _ = asyncio.run(latest_attempt(State(spec, s3.options()).store, 0))
    assert (record.state, record.exit_code) == ("succeeded", 0)
