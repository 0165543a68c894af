"""The process that the launcher starts leaves its exit code behind."""

import os
import subprocess
import sys

import pytest


def run_child(folder, program: str) -> tuple[int, str | None]:
    """Run a module under the child's main; its exit code and what it left behind."""
    (folder / "program_under_test.py").write_text(program)
    note = folder / "job.exit"
    command = (
        "import sys; from airflow_provider_rollout.launchers.child import main; sys.exit(main('program_under_test'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "ROLLOUT_EXIT_FILE": str(note)}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, check=False)
    return done.returncode, note.read_text() if note.exists() else None


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("print('done')", 0),
        ("import sys; sys.exit(0)", 0),
        ("import sys; sys.exit(75)", 75),
        ("import sys; sys.exit('a message')", 1),
    ],
)
def test_the_exit_code_is_left_behind(tmp_path, program, code):
    """Whoever looks later learns how the job ended."""
    assert run_child(tmp_path, program) == (code, str(code))


def test_a_crash_leaves_the_code_of_a_failure(tmp_path):
    """A bug in the job is a failure like any other."""
    assert run_child(tmp_path, "raise RuntimeError('bug')") == (1, "1")


def test_a_killed_job_leaves_nothing(tmp_path):
    """It had no time to; the watcher calls it lost."""
    code, note = run_child(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (code, note) == (-9, None)


def test_the_job_does_not_hand_the_note_on_to_its_children(tmp_path):
    """A model server that ends must not sign for the job."""
    program = "import os, sys; sys.exit(7 if 'ROLLOUT_EXIT_FILE' in os.environ else 0)"
    assert run_child(tmp_path, program) == (0, "0")
