"""Rules of the command line: what it passes on, what it prints where, how it exits."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_rollout.engine import cli
from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec, job_spec_bytes

DUMMY = {"server_type": "dummy", "model_name_or_path": "tiny"}

ROLLOUTS = """
import asyncio


async def ask(document, generate, style="plain"):
    answer = await generate({"messages": [{"role": "user", "content": f"{style}: {document.text}"}]})
    return {"answer": answer.text, "style": style}


async def slowly(document, generate):
    await asyncio.sleep(0.1)
    return await generate({"messages": [{"role": "user", "content": document.text}]})
"""


def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as exit_:
            code = exit_.code
    return code, out.getvalue(), err.getvalue()


def command(*arguments: str) -> list[str]:
    """The command as a launcher starts it."""
    return [sys.executable, "-m", "airflow_provider_rollout.engine.cli", *arguments]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with 30 documents, a config and rollout functions, which is the working directory."""
    lines = [json.dumps({"id": f"d{number}", "text": f"text {number}"}) for number in range(30)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({**DUMMY, "max_concurrent_generations": 4}), encoding="utf-8")
    (tmp_path / "my_rollouts.py").write_text(ROLLOUTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder, output: str = "out") -> list[dict]:
    """What was written, as JSON lines."""
    parts = sorted((folder / output).glob("*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]


RUN = ("run", "--source", "in.jsonl", "--output", "out", "--output-format", "jsonl", "--config", "config.json")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "COMMAND"),
        (("walk",), "invalid choice"),
        (("run",), "--source is missing"),
        (("run", "--source", "in.jsonl"), "--output is missing"),
        (("run", "--source", "in.jsonl", "--output", "out", "--prompt-template", "{text}"), "--config is missing"),
        ((*RUN,), "either rollout"),
        ((*RUN, "--prompt-template", "{text}", "--rollout", "m:f"), "either rollout"),
        ((*RUN, "--prompt-template", "{text}", "--config", "none.json"), "none.json"),
        ((*RUN, "--prompt-template", "{text}", "--config", "[1]"), "--config [1]"),
        ((*RUN, "--prompt-template", "{text}", "--config", '{"modle": 1}'), "no parameter 'modle'"),
        ((*RUN, "--prompt-template", "{text}", "--rollout-kwargs", "[1]"), "not a JSON object"),
        ((*RUN, "--prompt-template", "{text}", "--rank", "1"), "rank"),
        ((*RUN, "--prompt-template", "{text}", "--max-failed-share", "2"), "max_failed_share"),
        ((*RUN, "--prompt-template", "{text}", "--on-bad-row", "drop"), "invalid choice"),
        (("run", "--spec", "spec.json", "--output", "out"), "remove --output"),
        (("clean",), "URI"),
    ],
)
def test_wrong_arguments_are_told_in_one_message_and_exit_with_two(folder, arguments, told):
    """A launcher never retries what it said wrongly; nothing is written."""
    code, out, err = run(*arguments)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert out == ""
    assert not (folder / "out").exists()


def test_a_flag_that_is_not_given_leaves_the_default_alone(folder):
    """Defaults stand in config.py and nowhere else."""
    given = vars(cli._parser().parse_args([*RUN, "--prompt-template", "{text}"]))
    given.pop("command")
    spec = cli._spec_of_flags(given)
    config = InferenceConfig(**DUMMY, max_concurrent_generations=4)
    assert spec == JobSpec(
        job_id=spec.job_id,
        source=["in.jsonl"],
        output="out",
        output_format="jsonl",
        config=config,
        prompt_template="{text}",
    )
    assert spec.job_id.startswith("cli-")


def test_every_flag_reaches_its_place_in_the_spec(folder):
    """What a flag says is what the job is told."""
    flags = "--source b --checkpoints s --rank 1 --world-size 2 --records-per-chunk 5 --retry-failed --metadata-key r"
    more = (
        "--max-failed 3 --max-failed-share 0.5 --max-consecutive-failures 9 --on-config-change restart --text-field t"
    )
    last = "--id-field i --on-bad-row skip --rollout m:f --shared-context m:c --server-type endpoint --model big"
    urls = ["--endpoint-url", "http://a", "--endpoint-url", "http://b", "--rollout-kwargs", '{"n": 1}']
    given = vars(cli._parser().parse_args([*RUN, *flags.split(), *more.split(), *last.split(), *urls]))
    given.pop("command")
    spec = cli._spec_of_flags(given)
    assert (spec.source, spec.checkpoints, spec.rank, spec.world_size) == (["in.jsonl", "b"], "s", 1, 2)
    assert (spec.records_per_chunk, spec.retry_failed, spec.metadata_key) == (5, True, "r")
    budget = spec.failure_budget
    assert (budget.max_failed, budget.max_failed_share, budget.max_consecutive_failures) == (3, 0.5, 9)
    assert (spec.reader.text_field, spec.reader.id_field, spec.reader.on_bad_row) == ("t", "i", "skip")
    assert (spec.rollout, spec.shared_context, spec.rollout_kwargs) == ("m:f", "m:c", {"n": 1})
    assert (spec.config.server_type, spec.config.model_name_or_path) == ("endpoint", "big")
    assert spec.config.endpoint_urls == ("http://a", "http://b")
    assert spec.config.max_concurrent_generations == 4
    assert spec.on_config_change == "restart"


def test_a_run_writes_every_document_and_the_same_command_again_asks_nothing(folder):
    """Done is done: the second run skips it all and says so."""
    ask = [*RUN, "--rollout", "my_rollouts:ask", "--rollout-kwargs", '{"style": "fancy"}', "--records-per-chunk", "8"]
    first = subprocess.run(command(*ask), capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert "30 documents in, 30 written, 0 failed, 0 dropped" in first.stdout
    written = rows(folder)
    assert [row["id"] for row in written] == [f"d{number}" for number in range(30)]
    assert all(row["rollout_results"][0]["style"] == "fancy" for row in written)

    again = subprocess.run(command(*ask), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "30 documents in, 30 written" in again.stdout
    assert rows(folder) == written

    code, out, _ = run("status", "out", "--json")
    assert code == 0
    ranks = json.loads(out)["ranks"]
    assert [(rank["rank"], rank["verdict"]) for rank in ranks] == [(0, "succeeded")]
    code, out, _ = run("report", "out", "--json")
    assert code == 0
    assert json.loads(out)["total"]["documents_written"] == 30
    for looked in (("status", "out"), ("status", "out", "--watch"), ("report", "out/_rollout")):
        code, out, err = run(*looked)
        assert (code, err) == (0, "")
        assert "30" in out


def test_a_stored_spec_is_run_as_it_is(folder):
    """What a launcher stored is all that a job needs."""
    spec = JobSpec(
        job_id="launched [1]",
        source=[str(folder / "in.jsonl")],
        output=str(folder / "out"),
        output_format="jsonl",
        config=InferenceConfig(**DUMMY),
        prompt_template="Say {text}",
    )
    (folder / "spec [1].json").write_bytes(job_spec_bytes(spec))
    done = subprocess.run(command("run", "--spec", "spec [1].json"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(rows(folder)) == 30
    _, out, _ = run("status", "out", "--json")
    assert json.loads(out)["ranks"][0]["attempt"]["job_id"] == "launched [1]"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("run", "--spec", "none.json"), 1, "none.json"),
        (("status", "nowhere"), 1, "no run at nowhere"),
        (("report", "nowhere"), 1, "no run at nowhere"),
        (("clean", "nowhere", "--yes"), 1, "no run at nowhere"),
        ((*RUN, "--prompt-template", "{text}", "--source", "none/*.jsonl"), 1, "none"),
    ],
)
def test_what_cannot_be_found_is_one_line_on_standard_error(folder, arguments, code, told):
    """Only a bug shows a traceback."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == code
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("airflow-rollout: ")
    assert told in line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_a_state_from_which_the_same_command_goes_on(folder, sent, code):
    """130 and 143 mean: start me again."""
    slowly = command(*RUN, "--rollout", "my_rollouts:slowly", "--records-per-chunk", "4")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(slowly, stderr=subprocess.PIPE, env=environment, text=True)
    deadline_s = time.monotonic() + 60
    while not rows(folder) and time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    done = subprocess.run(slowly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in rows(folder)] == [f"d{number}" for number in range(30)]
    _, out, _ = run("report", "out", "--json")
    states = [attempt["state"] for attempt in json.loads(out)["attempts"]["0"]]
    assert states == ["interrupted", "succeeded"]


def test_a_run_is_cleaned_only_when_told_so_twice(folder):
    """Without a person to ask, --yes is needed; the output stays unless it is named too."""
    ask = command(*RUN, "--prompt-template", "{text}")
    assert subprocess.run(ask, capture_output=True, check=False).returncode == 0
    clean = command("clean", "out")
    refused = subprocess.run(clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert run("clean", "out", "--yes")[0] == 0
    assert len(rows(folder)) == 30
    again = subprocess.run(ask, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(rows(folder)) == 30
    assert run("clean", "out", "--yes", "--output")[0] == 0
    assert rows(folder) == []


ENDS_EARLY = """
import atexit
import sys
import threading
import time
from airflow_provider_rollout.engine.cli import program


class Witness:
    def __del__(self):
        print("torn down", flush=True)


witness = Witness()
sys.argv = ["airflow-rollout", "status", "nowhere"]
atexit.register(print, "left in order")
threading.Thread(target=time.sleep, args=(60,)).start()
program()
"""


def test_the_process_ends_with_its_code_and_without_tear_down(folder):
    """Threads of the store's client may hold a process, or abort it when the interpreter goes away."""
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["left in order"]
    assert "no run at nowhere" in done.stderr


def test_the_installed_command_is_the_same_program():
    """``pip install`` brings ``airflow-rollout``."""
    program = shutil.which("airflow-rollout", path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "status" in done.stdout
