"""A million documents: flat memory, and a resume from the middle that does not read it all again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from servers.rollout_job import DummyProcess, JobProcess, State, dummy_process

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec

DOCUMENTS = 1_000_000
ASK_EVERY = 500
MAX_RSS_BYTES = 400_000_000
MAX_FIRST_REQUEST_S = 10.0

ROLLOUT = f"""
async def rollout(document, generate):
    if int(document.id) % {ASK_EVERY} == 0:
        return (await generate({{"messages": [{{"role": "user", "content": document.text}}]}})).text
    return {{"id": document.id}}
"""


def run_until(job: JobProcess, server: DummyProcess, requests: int | None) -> int:
    """Let the job run, or kill it at so many requests; its largest memory, in bytes."""
    process, peak_bytes = psutil.Process(job.process.pid), 0
    while job.process.poll() is None:
        try:
            peak_bytes = max(peak_bytes, process.memory_info().rss)
        except psutil.Error:
            break
        if requests is not None and server.stats().get("requests", 0) >= requests:
            job.signal(signal.SIGKILL)
        time.sleep(0.2)
    job.process.wait()
    return peak_bytes


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_documents_need_little_memory_and_resume_at_once(tmp_path: Path):
    """Killed in the middle; both runs stay below the bound, and the second goes on where the first was."""
    source = tmp_path / "in.jsonl"
    with source.open("w") as file:
        file.writelines(f'{{"id": "{number}", "text": "small document {number}"}}\n' for number in range(DOCUMENTS))
    (tmp_path / "sparse.py").write_text(ROLLOUT)
    with dummy_process() as server:
        spec = JobSpec(
            job_id="million",
            source=[str(source)],
            output=str(tmp_path / "out"),
            rollout=f"{tmp_path}/sparse.py:rollout",
            config=InferenceConfig(
                server_type="endpoint",
                endpoint_url=server.url,
                model_name_or_path="dummy",
                max_concurrent_generations=200,
            ),
        )
        half = DOCUMENTS // ASK_EVERY // 2
        first_peak_bytes = run_until(JobProcess(spec, log=tmp_path / "job.log"), server, half)
        before, began_s = server.stats()["requests"], time.monotonic()
        job = JobProcess(spec, log=tmp_path / "job.log")
        while server.stats()["requests"] == before and job.process.poll() is None:
            time.sleep(0.02)
        first_request_s = time.monotonic() - began_s
        second_peak_bytes = run_until(job, server, None)
    print(
        f"\npeak {first_peak_bytes / 1e6:.0f} and {second_peak_bytes / 1e6:.0f} MB, first request after {first_request_s:.1f} s"
    )
    manifest = State(spec).manifest()
    assert manifest is not None
    assert manifest.documents_written == DOCUMENTS
    assert max(first_peak_bytes, second_peak_bytes) < MAX_RSS_BYTES
    assert first_request_s < MAX_FIRST_REQUEST_S
