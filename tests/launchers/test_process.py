"""Jobs as processes of this machine: started, asked, stopped, outliving who started them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from airflow_provider_rollout.launchers.base import Launch
from airflow_provider_rollout.launchers.process import ProcessLauncher, import_folders, job_environment

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('stubborn', flush=True); time.sleep(60)"
)


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A launcher whose logs go to the test's folder; whatever it left is ended."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launched = []
    process_launcher = ProcessLauncher()

    def start(spec_uri: str, **environment: str) -> dict:
        launch = Launch(job_id="job-1", rank=0, checkpoints=str(tmp_path), spec_uri=spec_uri, environment=environment)
        launched.append(process_launcher.submit(launch))
        return launched[-1]

    process_launcher.start = start
    yield process_launcher
    for handle in launched:
        process_launcher.cancel(handle, kill_after_s=0.0)


def wait_until(condition, within_s: float = 15.0) -> bool:
    """Look until it holds."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def instead_of_the_job(folder: Path, program: str) -> dict[str, str]:
    """An environment in which the job's interpreter runs a program at its start, in place of the job."""
    (folder / "sitecustomize.py").write_text(
        f"import os\nif 'STAND_IN' in os.environ:\n    exec({program!r})\n    os._exit(0)\n"
    )
    return {"STAND_IN": "1", "PYTHONPATH": str(folder)}


def test_a_job_that_cannot_start_is_gone_and_leaves_its_reason(launcher, tmp_path):
    """The spec does not exist: the log says so, the exit code too."""
    handle = launcher.start(str(tmp_path / "no-such-spec.json"))
    assert wait_until(lambda: launcher.status(handle) == "gone", within_s=30)
    assert launcher.exit_code(handle) not in {None, 0}
    assert "no-such-spec.json" in launcher.log_tail(handle)


def test_airflows_configuration_says_where_the_logs_go(launcher, tmp_path, monkeypatch):
    """``[rollout] job_log_folder``; logs quote documents, so they lie in a folder of this user alone."""
    monkeypatch.setenv("AIRFLOW__ROLLOUT__JOB_LOG_FOLDER", str(tmp_path / "logs"))
    folder = Path(launcher.start(str(tmp_path / "no-such-spec.json"))["log_path"]).parent
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path / "logs", 0o700)


def test_a_new_job_takes_away_what_old_jobs_left_behind(launcher, tmp_path):
    """Two weeks after the last word of a job; one that still writes, and files of others, stay."""
    folder = tmp_path / f"airflow-rollout-{os.getuid()}"
    folder.mkdir(mode=0o700)
    days = {"old.log": 15, "old.exit": 15, "torn.exit-new": 15, "at-work.log": 13, "other.txt": 15}
    for name, age in days.items():
        (folder / name).touch()
        os.utime(folder / name, (0, time.time() - age * 24 * 3600))
    handle = launcher.start(str(tmp_path / "no-such-spec.json"))
    left = {path.name for path in folder.iterdir()} - {"job-1.exit", "job-1.exit-new"}
    assert left == {"at-work.log", "other.txt", Path(handle["log_path"]).name}


def test_a_handle_is_json_without_secrets(launcher, tmp_path):
    """It travels to the database, to the triggerer and to people."""
    handle = launcher.start("spec.json", ROLLOUT_API_KEY="sk-secret", **instead_of_the_job(tmp_path, STUBBORN))
    text = json.dumps(handle)
    assert "sk-secret" not in text
    assert {"launcher", "host", "boot_id", "pid", "create_time", "log_path", "job_id", "rank", "checkpoints"} <= set(
        handle
    )
    assert "sk-secret" not in " ".join(psutil.Process(handle["pid"]).cmdline())


def test_a_job_has_a_session_of_its_own_and_no_pipe_to_its_starter(launcher, tmp_path):
    """Airflow ends the worker's process group and waits for inherited pipes; the job is touched by neither."""
    handle = launcher.start("spec.json", **instead_of_the_job(tmp_path, STUBBORN))
    assert os.getsid(handle["pid"]) == handle["pid"] == os.getpgid(handle["pid"])
    assert psutil.Process(handle["pid"]).cwd() == "/"
    opened = {number: str(Path(f"/proc/{handle['pid']}/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert opened == {0: "/dev/null", 1: handle["log_path"], 2: handle["log_path"]}


def test_a_job_that_ignores_sigterm_is_killed_after_a_bound(launcher, tmp_path):
    """A cancelled job does not hold its GPU for ever."""
    handle = launcher.start("spec.json", **instead_of_the_job(tmp_path, STUBBORN))
    assert wait_until(lambda: "stubborn" in launcher.log_tail(handle))
    launcher.cancel(handle, kill_after_s=0.3)
    assert launcher.status(handle) == "gone"
    assert launcher.exit_code(handle) is None


@pytest.mark.alone
def test_asking_a_job_to_stop_does_not_wait_for_it(launcher, tmp_path):
    """A worker that is being killed has 5 s for everything."""
    handle = launcher.start("spec.json", **instead_of_the_job(tmp_path, STUBBORN))
    assert wait_until(lambda: "stubborn" in launcher.log_tail(handle))
    started_s = time.monotonic()
    launcher.cancel(handle, kill_after_s=None)
    assert time.monotonic() - started_s < 1
    assert launcher.status(handle) == "running"


@pytest.mark.parametrize("field", ["host", "boot_id"])
def test_a_job_of_another_machine_is_unknown_and_left_alone(launcher, tmp_path, field):
    """The same pid there is another process."""
    handle = launcher.start("spec.json", **instead_of_the_job(tmp_path, STUBBORN))
    elsewhere = {**handle, field: "elsewhere"}
    assert launcher.status(elsewhere) == "unknown"
    launcher.cancel(elsewhere, kill_after_s=0.0)
    assert launcher.status(handle) == "running"


def test_a_pid_that_was_given_to_another_process_is_never_signalled(launcher, tmp_path):
    """Only the start time tells the two apart."""
    handle = launcher.start("spec.json", **instead_of_the_job(tmp_path, STUBBORN))
    reused = {**handle, "create_time": handle["create_time"] - 100}
    assert launcher.status(reused) == "gone"
    launcher.cancel(reused, kill_after_s=0.0)
    assert launcher.status(handle) == "running"


def test_a_job_outlives_the_process_that_started_it(launcher, tmp_path):
    """The worker ends when its task is deferred."""
    program = (
        "import json, tempfile; from airflow_provider_rollout.launchers.base import Launch\n"
        "from airflow_provider_rollout.launchers.process import ProcessLauncher\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"launch = Launch(job_id='j', rank=0, checkpoints='/c', spec_uri='s', environment={instead_of_the_job(tmp_path, STUBBORN)!r})\n"
        "print(json.dumps(ProcessLauncher().submit(launch)))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    handle = json.loads(done.stdout)
    assert wait_until(lambda: "stubborn" in launcher.log_tail(handle))
    assert launcher.status(handle) == "running"
    launcher.cancel(handle, kill_after_s=0.1)
    assert wait_until(lambda: launcher.status(handle) == "gone")


def test_the_job_does_not_inherit_airflow():
    """Its database, its connections and its variables are not the job's business; everything else is."""
    environment = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "x",
        "AIRFLOW_CONN_DB": "x",
        "AIRFLOW_VAR_A": "x",
        "AIRFLOW_CTX_DAG_ID": "x",
        "_AIRFLOW_PROCESS_CONTEXT": "x",
        "AIRFLOW_HOME": "kept",
        "HF_TOKEN": "kept",
        "CUDA_VISIBLE_DEVICES": "kept",
    }
    kept = {name for name, value in job_environment(environment).items() if value == "kept"}
    assert kept == {"AIRFLOW_HOME", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"}
    assert "x" not in job_environment(environment).values()


def test_the_job_imports_from_where_the_worker_does(tmp_path):
    """A DAG bundle is on the worker's path; the interpreter's own folders are left to the interpreter."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    folders = import_folders(["", str(bundle), str(tmp_path / "missing"), str(Path(os.__file__).parent), str(bundle)])
    assert folders == [str(bundle)]
