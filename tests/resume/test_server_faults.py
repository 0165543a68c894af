"""A job and its own server, which fails in every way: nothing is lost, nothing is written twice, and every failure has its cause."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest
from servers.rollout_job import JobProcess, State

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import latest_attempt

SERVER = "airflow_provider_rollout.engine.serving.dummy"


def make_spec(folder: Path, texts: list[str], *, faults: list[dict], flags: dict | None = None, **config) -> JobSpec:
    """A job on these texts, with a dummy server of its own that plays these faults and notes every request."""
    (folder / "documents.jsonl").write_text(
        "".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts))
    )
    (folder / "faults.json").write_text(json.dumps(faults))
    model_kwargs = {
        "faults": str(folder / "faults.json"),
        "log_requests": str(folder / "requests"),
        **(flags or {}),
    }
    values = {"max_concurrent_generations": 24, "retry_backoff_base_sec": 0.05, "server_ready_delay_sec": 0.1, **config}
    return JobSpec(
        job_id="job",
        source=[str(folder / "documents.jsonl")],
        output=str(folder / "out"),
        config=InferenceConfig(server_type="dummy", model_name_or_path="m", model_kwargs=model_kwargs, **values),
        prompt_template="{text}",
        records_per_chunk=300,
    )


def requests(folder: Path) -> list[dict]:
    """What the server has noted, over all its lives."""
    path = folder / "requests"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_requests(folder: Path, count: int, job: JobProcess) -> None:
    """Wait until so many have ended at the server."""
    while len(requests(folder)) < count:
        assert job.process.poll() is None, (folder / "job.log").read_text()[-3000:]
        time.sleep(0.02)


def server_of(job: JobProcess) -> psutil.Process:
    """The server's own process, below its guards."""
    while True:
        for process in psutil.Process(job.process.pid).children(recursive=True):
            words = process.cmdline()
            if SERVER in words and not any("guard.py" in word for word in words):
                return process
        time.sleep(0.02)


def dead_letters(spec: JobSpec) -> list[dict]:
    """All of them, in order."""
    files = sorted(Path(f"{spec.checkpoints_uri}/failed").rglob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def record(spec: JobSpec):
    """The newest attempt's last word."""
    return asyncio.run(latest_attempt(State(spec).store, 0))[0]


def fault_texts() -> list[str]:
    """1,000 documents: 10 refused, 10 that always fail, 50 told to come back, 10 cut off, and 920 that are fine."""
    kinds = ["refused"] * 10 + ["broken"] * 10 + ["busy"] * 50 + ["cut"] * 10 + ["fine"] * 920
    return [f"{kinds[number * 377 % 1000]} secret-word-{number}" for number in range(1000)]


@pytest.mark.timeout(180)
def test_of_a_thousand_documents_only_those_fail_that_must(tmp_path):
    """1 % 400, 1 % always 500, 5 % one 429 with Retry-After, 1 % a cut body, three dead servers: 980 rows and 20 dead letters."""
    faults = [
        {"match": "refused ", "action": "status", "status": 400, "body": '{"error":{"message":"too long"}}'},
        {"match": "broken ", "action": "status", "status": 500},
        {"match": "busy ", "action": "status", "status": 429, "retry_after": "1", "first": 1},
        {"match": "cut ", "action": "cut", "first": 1},
    ]
    texts = fault_texts()
    spec = make_spec(tmp_path, texts, faults=faults, flags={"latency_ms": 60}, max_request_attempts=4)
    job = JobProcess(spec, log=tmp_path / "job.log")
    for count in (200, 500, 850):
        wait_for_requests(tmp_path, count, job)
        server_of(job).kill()
    log = tmp_path / "job.log"
    assert job.wait() == 0, log.read_text()[-3000:]
    assert [row.text for row in State(spec).rows()] == [text for text in texts if text[:3] not in {"ref", "bro"}]
    manifest = State(spec).manifest()
    assert (manifest.documents_in, manifest.documents_written, manifest.documents_failed) == (1000, 980, 20)
    assert manifest.top_causes == {"BadRequestError 400": 10, "RequestRejectedError 500": 10}
    assert record(spec).top_causes == manifest.top_causes
    assert record(spec).totals["server_starts"] == 4
    letters = dead_letters(spec)
    assert Counter((letter["cause"], letter["status"], letter["attempts"]) for letter in letters) == {
        ("BadRequestError", 400, 1): 10,
        ("RequestRejectedError", 500, 4): 10,
    }
    assert_letters_lead_to_their_documents(letters, texts)
    assert "secret-word" not in log.read_text() + json.dumps(letters)


def assert_letters_lead_to_their_documents(letters: list[dict], texts: list[str]) -> None:
    """By id, by number, and by place in the shard; each names its own payload."""
    for letter in letters:
        number = letter["document_number"]
        assert (letter["document_id"], letter["rollout_index"]) == (f"d{number}", 0)
        before = Path(letter["shard"]).read_bytes()[: letter["shard_offset"]]
        assert json.loads(before.splitlines()[-1]) == {"id": f"d{number}", "text": texts[number]}
    assert len({letter["payload_sha256"] for letter in letters}) == len(letters)


def test_a_server_that_answers_health_and_no_request_is_replaced_in_time(tmp_path):
    """/health, /v1/models and /metrics answer; the watchdog sees that no token moves, and the job finishes on the next server."""
    stall_s = 2.0
    spec = make_spec(
        tmp_path, [f"t{number}" for number in range(50)], faults=[{"action": "hang"}], stall_timeout_sec=stall_s
    )
    job = JobProcess(spec, log=tmp_path / "job.log")
    first = server_of(job)
    while "is ready after" not in (tmp_path / "job.log").read_text():
        time.sleep(0.05)
    (tmp_path / "faults.json").write_text("[]")  # read at the next start
    psutil.wait_procs([first], timeout=30)
    assert not first.is_running()
    assert job.wait(60) == 0, (tmp_path / "job.log").read_text()[-3000:]
    stalled_s = [line["ended_s"] - line["started_s"] for line in requests(tmp_path) if line["status"] == 0]
    assert len(stalled_s) >= 24
    assert all(stall_s - 0.1 <= seconds < 2 * stall_s + 1 for seconds in stalled_s), stalled_s
    assert record(spec).totals["server_starts"] == 2
    assert len(State(spec).rows()) == 50
    assert "hangs: 24 requests in flight" in (tmp_path / "job.log").read_text()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "cancel"])
def test_a_stop_is_bounded_whatever_the_server_does(tmp_path, how):
    """It answers nothing and ignores SIGTERM; the job ends within 30 s, leaves no process, and is resumed."""
    spec = make_spec(
        tmp_path,
        [f"{'stuck' if number >= 20 else 'fine'} {number}" for number in range(40)],
        faults=[{"match": "stuck", "action": "hang"}],
        flags={"ignore_sigterm": True},
    )
    job = JobProcess(spec, log=tmp_path / "job.log")
    wait_for_requests(tmp_path, 20, job)
    below = psutil.Process(job.process.pid).children(recursive=True)
    time.sleep(1.0)
    if how == "cancel":
        asyncio.run(State(spec).store.put(layout.cancel(spec.job_id), b""))
    else:
        job.signal(signal.Signals[how])
    if how == "SIGINT":  # a second one takes the grace away
        time.sleep(0.5)
        job.signal(signal.SIGINT)
    began_s = time.monotonic()
    assert job.wait(40) == (130 if how == "SIGINT" else 143)
    assert time.monotonic() - began_s < 30
    assert not psutil.wait_procs(below, timeout=1)[1]
    assert record(spec).state == ("cancelled" if how == "cancel" else "interrupted")
    (tmp_path / "faults.json").write_text("[]")
    before = len(requests(tmp_path))
    resumed = JobProcess(make_again(spec), log=tmp_path / "job.log")
    assert resumed.wait() == 0, (tmp_path / "job.log").read_text()[-3000:]
    assert len(requests(tmp_path)) - before == 20, "what was answered is not asked again"
    assert len(State(spec).rows()) == 40


def make_again(spec: JobSpec) -> JobSpec:
    """The same work, launched again."""
    return msgspec.structs.replace(spec, job_id="again")
