"""A real vLLM, started by the job: ready, used, killed, restarted, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from servers.rollout_job import JobProcess, State

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

VLLM_DIR = Path(os.environ.get("VLLM_DIR", ".cache/vllm")).absolute()
COUNT = 600


class VllmRun:
    """A job on a real vLLM; its processes are known by a mark in their environment."""

    def __init__(self, tmp_path: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.sessions: set[int] = set()
        self.log = tmp_path / "job.log"
        source = tmp_path / "in.jsonl"
        self.texts = [f"How many apples are {number} apples?" for number in range(COUNT)]
        self.texts[7] = "far too long " * 1000
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in self.texts))
        server_env = dict(line.split("=", 1) for line in (VLLM_DIR / "vllm.env").read_text().split())
        config = InferenceConfig(
            server_type="vllm",
            model_name_or_path=str(VLLM_DIR / "tiny-llama"),
            model_max_context=512,
            server_command=[str(VLLM_DIR / "bin" / "vllm"), "serve"],
            server_env={**server_env, "ROLLOUT_TEST_MARK": self.mark},
            model_kwargs={"dtype": "bfloat16", "enforce_eager": True},
            default_generation_params={"max_tokens": 32, "ignore_eos": True},
            max_concurrent_generations=64,
            server_log_folder=str(tmp_path / "logs"),
        )
        self.spec = JobSpec(
            job_id="vllm",
            source=[str(source)],
            output=str(tmp_path / "out"),
            config=config,
            prompt_template="{text}",
            records_per_chunk=100,
        )
        self.state = State(self.spec)

    def start(self) -> JobProcess:
        """Start the job."""
        return JobProcess(self.spec, log=self.log)

    def server_processes(self) -> list[psutil.Process]:
        """All processes of the server, wherever they hang in the tree.

        vLLM's own children overwrite their environment with a process title, but stay in the session of the one that bears the mark.
        """
        processes = list(psutil.process_iter())
        for process in processes:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.environ().get("ROLLOUT_TEST_MARK") == self.mark:
                    self.sessions.add(os.getsid(process.pid))
        return [process for process in processes if self._is_of_server(process)]

    def _is_of_server(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) in self.sessions and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ProcessLookupError):
            return False

    def wait_for_chunk(self, job: JobProcess) -> None:
        """Return once a chunk is committed: the model answers."""
        while job.process.poll() is None and not self.state.chunks():
            self.server_processes()
        assert job.process.poll() is None, self.log.read_text()[-3000:]

    def check_done(self) -> None:
        """All documents ended, the long one as a dead letter."""
        manifest = self.state.manifest()
        assert manifest is not None
        assert (manifest.documents_in, manifest.documents_written, manifest.documents_failed) == (COUNT, COUNT - 1, 1)
        assert manifest.top_causes == {"BadRequestError 400": 1}
        rows = self.state.rows()
        assert [row.text for row in rows] == [text for text in self.texts if len(text) < 100]
        assert all(row.results[0]["usage"]["completion_tokens"] == 32 for row in rows)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[VllmRun]:
    """A run that leaves nothing behind, whatever the test finds."""
    run = VllmRun(tmp_path)
    yield run
    for process in run.server_processes():
        process.kill()


def test_the_job_starts_the_server_and_stops_it(run):
    """Ready with the right model, a prompt over its context is a dead letter, and no process is left."""
    job = run.start()
    assert job.wait(400) == 0, run.log.read_text()[-3000:]
    run.check_done()
    assert run.server_processes() == []


def test_a_dead_engine_is_replaced_and_the_job_finishes(run):
    """EngineCore killed in mid-run; its requests are sent again."""
    job = run.start()
    run.wait_for_chunk(job)
    engines = [process for process in run.server_processes() if "EngineCore" in " ".join(process.cmdline())]
    assert engines
    engines[0].kill()
    assert job.wait(400) == 0, run.log.read_text()[-3000:]
    run.check_done()
    assert run.server_processes() == []


def test_a_killed_job_leaves_no_server_and_resumes(run):
    """SIGKILL of the job; within ten seconds nothing of vLLM runs any more."""
    job = run.start()
    run.wait_for_chunk(job)
    assert len(run.server_processes()) >= 3
    job.signal(signal.SIGKILL)
    job.wait()
    killed_s = time.monotonic()
    while run.server_processes():
        assert time.monotonic() - killed_s < 10
        time.sleep(0.2)
    resumed = run.start()
    assert resumed.wait(400) == 0, run.log.read_text()[-3000:]
    run.check_done()
