"""A whole job against a real vLLM server (CPU build, tiny model): answers, a kill -9 in the middle, resume, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec, job_spec_bytes

DOCUMENTS = 120
PER_CHUNK = 20

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def vllm() -> Path:
    """The folder that tests/servers/real_vllm.sh has filled."""
    folder = Path(os.environ.get("VLLM_DIR", ".cache/vllm")).absolute()
    if not (folder / "complete").exists():
        pytest.skip(f"no real vLLM in {folder}; `make test-vllm` builds it, or VLLM_DIR names one")
    return folder


class Job:
    """One job, which can be started again and again."""

    def __init__(self, vllm: Path, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        folder.mkdir()
        texts = [f"How many apples are left if she eats {number} of the sixteen?" for number in range(DOCUMENTS)]
        lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        environment = (vllm / "vllm.env").read_text(encoding="utf-8").split()
        spec = JobSpec(
            job_id="real",
            source=[str(folder / "in.jsonl")],
            output=str(folder / "out"),
            output_format="jsonl",
            records_per_chunk=PER_CHUNK,
            prompt_template="{text}",
            config=InferenceConfig(
                server_type="vllm",
                model_name_or_path=str(vllm / "tiny-llama"),
                model_max_context=512,
                server_command=[str(vllm / "bin" / "vllm"), "serve"],
                server_env={**dict(line.split("=", 1) for line in environment), "ROLLOUT_TEST_MARK": self.mark},
                model_kwargs={"dtype": "bfloat16", "enforce_eager": True},
                max_concurrent_generations=8,
                default_generation_params={"max_tokens": 48, "temperature": 0.0, "ignore_eos": True},
            ),
        )
        (folder / "spec.json").write_bytes(job_spec_bytes(spec))

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, as a launcher does."""
        command = [sys.executable, "-m", "airflow_provider_rollout.engine.cli", "run", "--spec"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([*command, str(self.folder / "spec.json")], stdout=log, stderr=log)

    def log(self) -> str:
        """What its processes have said."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-5000:]

    def rows(self) -> list[dict]:
        """What is written, in order."""
        parts = sorted((self.folder / "out").glob("*.jsonl"))
        return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]

    def server_processes(self) -> list[str]:
        """The living processes of its servers."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ROLLOUT_TEST_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
            except psutil.Error:
                continue
        return found

    def wait_until_no_server(self) -> list[str]:
        """The processes that are still there after a while; none if all is well."""
        deadline_s = time.monotonic() + 30
        while self.server_processes() and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return self.server_processes()


def test_a_job_killed_in_the_middle_resumes_on_a_real_server_and_leaves_no_process(vllm, tmp_path):
    """Every document once, in order, with honest usage; the server dies with its job, also when that is killed with -9."""
    job = Job(vllm, tmp_path / "job")
    process = job.start()
    try:
        deadline_s = time.monotonic() + 600
        while not job.rows() and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert process.poll() is None, job.log()
        assert job.server_processes() != []
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert job.wait_until_no_server() == []
    before = job.rows()
    assert 0 < len(before) < DOCUMENTS

    process = job.start()
    assert process.wait(600) == 0, job.log()
    rows = job.rows()
    assert [row["id"] for row in rows] == [f"d{number}" for number in range(DOCUMENTS)]
    assert rows[: len(before)] == before
    answers = [row["rollout_results"][0] for row in rows]
    assert {answer["finish_reason"] for answer in answers} == {"length"}
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {48}
    assert job.wait_until_no_server() == []
