"""Killed anywhere, a job resumes, and its output equals that of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from servers.rollout_job import DummyProcess, JobProcess, State, dummy_process, prompt_hash

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.exceptions import EXIT_FENCED

FLUSH_S = 2.0  # what design and README promise
LOST_AFTER_S = 2.0
LATENCY_S = 0.2


def write_documents(path: Path, count: int) -> list[str]:
    """So many documents, each with a prompt of its own; some ids occur twice."""
    texts = [f"document number {number} of {count}" for number in range(count)]
    lines = (json.dumps({"id": f"d{number % (count - 7)}", "text": text}) for number, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n")
    return texts


def make_spec(source: Path, output: str, server: DummyProcess, in_flight: int = 40, **changes) -> JobSpec:
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=server.url,
        model_name_or_path="dummy",
        max_concurrent_generations=in_flight,
    )
    values = {
        "job_id": "undisturbed",
        "source": [str(source)],
        "output": output,
        "config": config,
        "prompt_template": "{text}",
        "records_per_chunk": 150,
        "attempt_lost_after_sec": LOST_AFTER_S,
    }
    return JobSpec(**{**values, **changes})


class Scenario:
    """A run that is killed again and again, beside an undisturbed one."""

    def __init__(self, tmp_path: Path, base_uri: str, server: DummyProcess, case, options) -> None:
        count, seed, self.in_flight = case
        self.random = random.Random(seed)
        self.texts = write_documents(tmp_path / "documents.jsonl", count)
        self.server = server
        self.options = options
        self.tmp_path = tmp_path
        self.kills = 0
        self.source = tmp_path / "documents.jsonl"
        self.base_uri = base_uri
        self.spec = make_spec(self.source, f"{base_uri}/killed", server)
        self.state = State(self.spec, options)
        self.requests_when_durable: dict[str, int] = {}
        self.zombies: list[JobProcess] = []
        self.launches = self.fenced = self.sent = 0

    def launch(self) -> JobProcess:
        spec = make_spec(self.source, self.spec.output, self.server, self.in_flight, job_id=f"job-{self.launches}")
        self.launches += 1
        scratch = self.tmp_path / f"scratch-{self.kills}"
        scratch.mkdir(exist_ok=True)
        return JobProcess(spec, self.options, log=self.tmp_path / "job.log", environment={"TMPDIR": str(scratch)})

    def note_durable(self) -> None:
        """Remember how often each document that is durable now has been asked; it must stay so."""
        by_prompt = self.server.stats()["by_prompt"]
        for number in self.state.durable_documents():
            name = prompt_hash(self.texts[number])
            self.requests_when_durable.setdefault(name, by_prompt.get(name, 0))

    def run(self, kills: int, *, zombie_every: int = 0, longest_s: float = 4.0) -> None:
        """Kill so many launches, then let one finish."""
        while self.kills < kills:
            job = self.launch()
            is_zombie = zombie_every > 0 and (self.kills + 1) % zombie_every == 0
            if is_zombie:
                self.wait_for_claim(job)
            time.sleep(self.random.uniform(0.2, longest_s))
            if job.process.poll() is not None:
                break
            self.kills += 1
            if is_zombie:
                job.signal(signal.SIGSTOP)
                self.zombies.append(job)
            else:
                job.signal(signal.SIGKILL, group=self.random.random() < 0.5)
                job.wait()
                self.note_durable()
            self.wake_replaced()
        assert self.finish() == 0, (self.tmp_path / "job.log").read_text()[-3000:]

    def wait_for_claim(self, job: JobProcess) -> None:
        """Wait until the rank is the job's: only then can it be replaced while it sleeps."""
        while self.state.newest_job_id() != job.job_id:
            assert job.process.poll() is None, (self.tmp_path / "job.log").read_text()[-3000:]
            time.sleep(0.05)

    def wake_replaced(self) -> None:
        """Wake stopped attempts once a newer one exists; they must end as fenced and change nothing."""
        for zombie in list(self.zombies):
            if self.state.newest_job_id() != zombie.job_id:
                self.zombies.remove(zombie)
                before = self.server.stats()["by_prompt"]
                zombie.signal(signal.SIGCONT)
                assert zombie.wait(60) == EXIT_FENCED
                self.fenced += 1
                self.forgive(before)

    def forgive(self, before: dict[str, int]) -> None:
        """A zombie asks on until it sees the fence, at its next heartbeat; nobody else asks while it does."""
        for name, count in self.server.stats()["by_prompt"].items():
            if name in self.requests_when_durable:
                self.requests_when_durable[name] += count - before.get(name, 0)

    def finish(self) -> int:
        code = self.launch().wait(300)
        self.wake_replaced()
        return code

    def check(self) -> None:
        """Every document once, in order, as in the undisturbed run; nothing durable was asked again."""
        self.sent = sum(self.server.stats()["by_prompt"].values())
        # Per kill: what was in flight, and what was answered within one flush interval.
        again_per_kill = self.in_flight + FLUSH_S * self.in_flight / LATENCY_S
        assert self.sent <= len(self.texts) + self.kills * again_per_kill
        undisturbed = make_spec(self.source, f"{self.base_uri}/undisturbed", self.server, in_flight=400)
        assert JobProcess(undisturbed, self.options, log=self.tmp_path / "undisturbed.log").wait() == 0
        counted = dict(self.server.stats()["by_prompt"])
        rows = self.state.rows()
        assert [row.text for row in rows] == self.texts
        assert rows == State(undisturbed, self.options).rows()
        manifest = self.state.manifest()
        assert manifest is not None
        assert (manifest.documents_in, manifest.documents_written) == (len(self.texts), len(self.texts))
        for name, before in self.requests_when_durable.items():
            assert counted[name] == before + 1, "a request that was durable when the job was killed was sent again"


@pytest.fixture
def scenario(tmp_path, store_uri, request):
    options = request.getfixturevalue("s3").options() if store_uri.startswith("s3://") else None
    case = getattr(request, "param", (2400, 1, 20))  # more work than fits between ten kills, however fast the machine
    with dummy_process("--latency-ms", str(LATENCY_S * 1000)) as server:
        yield Scenario(tmp_path, store_uri, server, case, options)


@pytest.mark.timeout(300)
def test_ten_kills_change_nothing(scenario):
    """SIGKILL of the job or its group at random moments; scratch is lost each time."""
    scenario.run(10)
    scenario.check()
    assert scenario.kills == 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", [(1000, 2, 40)], indirect=True)
def test_a_zombie_is_fenced_and_changes_nothing(scenario):
    """A stopped attempt that is replaced and woken exits with 75."""
    scenario.run(4, zombie_every=2)
    scenario.check()
    assert scenario.fenced >= 1


@pytest.mark.kill
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("scenario", [(5000, 3, 5)], indirect=True)
def test_two_hundred_kills_change_nothing(scenario):
    """The full run: every fifth victim is stopped, replaced and woken."""
    scenario.run(int(os.environ.get("KILLS", "200")), zombie_every=5, longest_s=5.0)
    scenario.check()
    print(f"\nkills={scenario.kills} launches={scenario.launches} fenced={scenario.fenced} requests={scenario.sent}")
    assert scenario.kills == int(os.environ.get("KILLS", "200"))


def test_of_two_jobs_at_once_one_works_and_the_other_says_which(tmp_path):
    """Nothing is mixed, and the loser names attempt, place and time."""
    write_documents(tmp_path / "documents.jsonl", 200)
    with dummy_process("--latency-ms", "300") as server:
        jobs = [
            JobProcess(
                make_spec(tmp_path / "documents.jsonl", str(tmp_path / "out"), server, job_id=f"job-{number}"),
                log=tmp_path / f"{number}.log",
            )
            for number in range(2)
        ]
        codes = sorted(job.wait() for job in jobs)
    assert codes == [0, EXIT_FENCED]
    logs = "".join((tmp_path / f"{number}.log").read_text() for number in range(2))
    assert "is at work since" in logs
    assert str(jobs[0].process.pid) in logs or str(jobs[1].process.pid) in logs


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_a_resumable_state_within_its_bound(tmp_path, number, code):
    """Stopped, flushed, and gone on from there."""
    texts = write_documents(tmp_path / "documents.jsonl", 400)
    with dummy_process("--latency-ms", "150") as server:
        spec = make_spec(tmp_path / "documents.jsonl", str(tmp_path / "out"), server)
        job = JobProcess(spec, log=tmp_path / "job.log")
        while sum(server.stats()["by_prompt"].values()) < 100:
            time.sleep(0.05)
        job.signal(number)
        began_s = time.monotonic()
        assert job.wait(30) == code
        assert time.monotonic() - began_s < 30
        answered = sum(server.stats()["by_prompt"].values())
        assert answered < len(texts)
        assert JobProcess(spec, log=tmp_path / "job.log").wait() == 0
        assert sum(server.stats()["by_prompt"].values()) == len(texts)
        assert [row.text for row in State(spec).rows()] == texts
