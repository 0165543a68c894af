"""What a resume goes by: the documents themselves, never how many were done, in which order, or by which model."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from servers.rollout_job import DummyProcess, JobProcess, State, dummy_process

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec

COUNT = 20


def make_spec(folder: Path, server: DummyProcess, **changes) -> JobSpec:
    """A job on 20 documents; number 0 is slow, number 3 is empty, numbers 5 and 6 share an id, number 7 has none."""
    source = folder / "documents.jsonl"
    if not source.exists():
        rows = [{"id": f"d{number}", "text": f"document {number} ."} for number in range(COUNT)]
        rows[3]["text"] = ""
        rows[6]["id"] = "d5"
        del rows[7]["id"]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=server.url,
        model_name_or_path=changes.pop("model", "dummy"),
        max_concurrent_generations=4,
    )
    values = {
        "job_id": "job",
        "source": [str(source)],
        "output": str(folder / "out"),
        "config": config,
        "prompt_template": "{text}",
        "records_per_chunk": COUNT,
        "attempt_lost_after_sec": 1.0,
    }
    return JobSpec(**{**values, **changes})


def texts() -> list[str]:
    return ["" if number == 3 else f"document {number} ." for number in range(COUNT)]


def kill_when(job: JobProcess, is_time, folder: Path) -> None:
    """Kill the job with -9 once something has happened."""
    while not is_time():
        assert job.process.poll() is None, (folder / "job.log").read_text()[-2000:]
        time.sleep(0.05)
    job.signal(signal.SIGKILL, group=True)
    job.wait()


def finish(spec: JobSpec, folder: Path) -> None:
    job = JobProcess(spec, log=folder / "job.log")
    assert job.wait(60) == 0, (folder / "job.log").read_text()[-2000:]


@pytest.fixture
def slow_first():
    """A server that takes its time for document 0 and is quick with all others."""
    rules = [{"match": "document 0 ", "action": "slow", "seconds": 6}]
    with dummy_process("--latency-ms", "300", "--faults", json.dumps(rules)) as process:
        yield process


@pytest.mark.parametrize("tail", [None, b"", b'{"id":"7","te\xff', b'{"id":"7","te\xff\n'], ids=str)
def test_a_resume_asks_what_is_missing_and_only_that(slow_first, tmp_path, tail):
    """Document 0 is the last to end; the job dies after ten others, and what it had stored may be torn at its end."""
    spec = make_spec(tmp_path, slow_first)
    state = State(spec)
    kill_when(JobProcess(spec, log=tmp_path / "job.log"), lambda: len(state.durable_documents()) >= 10, tmp_path)
    segments = sorted(Path(f"{spec.checkpoints_uri}/cache").rglob("*.seg"))
    if tail is not None:
        segments[-1].write_bytes(segments[-1].read_bytes()[:-25] + tail)
    durable = set() if tail is not None and len(segments) == 1 else readable_documents(state, torn=tail is not None)
    before = slow_first.stats()["requests"]
    finish(spec, tmp_path)
    assert slow_first.stats()["requests"] - before == COUNT - len(durable)
    rows = state.rows()
    assert [row.text for row in rows] == texts()
    assert [row.id for row in rows[4:7]] == ["d4", "d5", "d5"]
    assert len(rows[7].id) == 32


def readable_documents(state: State, *, torn: bool) -> set[int]:
    """What the sound segments hold; a torn last one is put aside to look."""
    if not torn:
        return state.durable_documents()
    last = max(Path(f"{state.spec.checkpoints_uri}/cache").rglob("*.seg"))
    data = last.read_bytes()
    last.unlink()
    try:
        return state.durable_documents()
    finally:
        last.write_bytes(data)


@pytest.mark.parametrize("done", [0, 1, 4])
def test_done_chunks_stay_byte_for_byte_and_a_resume_ends(tmp_path, done):
    """None, one or all of the chunks are done when the job dies; nothing is left open, and nothing is written again."""
    with dummy_process("--latency-ms", "150") as server:
        spec = make_spec(tmp_path, server, records_per_chunk=5)
        state = State(spec)
        if done == 4:
            finish(spec, tmp_path)
            Path(f"{spec.checkpoints_uri}/manifests/00000.json").unlink()
        else:
            kill_when(JobProcess(spec, log=tmp_path / "job.log"), lambda: len(state.chunks()) >= done, tmp_path)
        before = {record.output_key: Path(spec.output, record.output_key).stat() for record in state.chunks()}
        assert len(before) >= done
        finish(spec, tmp_path)
        for key, status in before.items():
            assert Path(spec.output, key).stat().st_mtime_ns == status.st_mtime_ns
        assert [row.text for row in state.rows()] == texts()
        manifest = state.manifest()
        assert manifest is not None
        assert manifest.documents_written == COUNT
        assert not list(Path(f"{spec.checkpoints_uri}/cache").rglob("*.seg"))


def test_another_model_takes_nothing_from_what_the_first_has_left(tmp_path):
    """The job refuses and names the model; begun anew on request, it asks for everything itself."""
    rules = [{"match": "document 0 ", "action": "hang"}]  # so that answers are left, and no chunk is done
    with dummy_process("--faults", json.dumps(rules), "--model", "a") as first, dummy_process("--model", "b") as second:
        spec = make_spec(tmp_path, first, model="a")
        state = State(spec)
        kill_when(JobProcess(spec, log=tmp_path / "job.log"), lambda: len(state.durable_documents()) >= 8, tmp_path)
        assert JobProcess(make_spec(tmp_path, second, model="b"), log=tmp_path / "job.log").wait() == 1
        assert "model_name_or_path" in (tmp_path / "job.log").read_text()
        assert second.stats().get("requests", 0) == 0
        finish(make_spec(tmp_path, second, model="b", on_config_change="restart"), tmp_path)
        assert second.stats()["requests"] == COUNT
        manifest = state.manifest()
        assert manifest is not None
        assert (manifest.cache_hits, manifest.documents_written) == (0, COUNT)
