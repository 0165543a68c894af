"""No process of a server outlives the job, or the guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from airflow_provider_rollout.engine.serving import guard

# A server that leaves children behind as vLLM does, one of them in a session of its own, and that ignores SIGTERM on demand.
SERVER = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if os.fork() == 0:
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""
JOB = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], "--parent", str(os.getpid()), "--grace", "0.5", "--",
                  *sys.argv[2:]], start_new_session=True).wait()
time.sleep(600)
"""


class Tree:
    """A job, its guards, its server; all marked in their arguments."""

    def __init__(self, *options: str) -> None:
        self.mark = uuid.uuid4().hex
        command = [sys.executable, "-c", SERVER, self.mark, *options]
        self.job = subprocess.Popen(
            [sys.executable, "-c", JOB, guard.__file__, *command], stdout=subprocess.PIPE, text=True
        )
        assert self.job.stdout is not None
        assert self.job.stdout.readline() == "up\n"
        self.outer = psutil.Process(self.job.pid).children()[0]
        self.inner = self.outer.children()[0]

    def server(self) -> psutil.Process:
        """The server itself, not what it left behind."""
        return next(process for process in self.inner.children() if process.children())

    def alive(self) -> list[str]:
        """Whatever bears the mark and is no zombie."""
        return [
            f"{process.pid} {process.info['cmdline'][:3]}"
            for process in psutil.process_iter(["pid", "cmdline", "status"])
            if self.mark in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def gone_within(self, seconds: float) -> bool:
        """Wait for the last of them."""
        end_s = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Leave nothing, whatever the test found."""
        self.job.kill()
        self.job.communicate()
        for process in psutil.process_iter(["cmdline"]):
            if self.mark in (process.info["cmdline"] or ()):
                process.kill()


@pytest.fixture
def tree(request):
    """A running job with a guarded server."""
    made = Tree(*getattr(request, "param", ()))
    yield made
    made.close()


def test_the_tree_has_five_processes_of_the_server_and_its_guards(tree):
    """Two guards, the server, a child, and one that has detached itself."""
    assert len(tree.alive()) == 6, "and the job, which has the mark in its arguments too"


def test_kill_9_of_the_job_leaves_nothing(tree):
    """Not even what detached itself and ignores SIGTERM."""
    tree.job.kill()
    tree.job.wait()
    assert tree.gone_within(2), tree.alive()


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_kill_9_of_a_guard_leaves_nothing(tree, which):
    """The other guard sees it."""
    getattr(tree, which).kill()
    end_s = time.monotonic() + 2
    while len(tree.alive()) > 1:
        assert time.monotonic() < end_s, tree.alive()
        time.sleep(0.02)
    assert tree.job.poll() is None


def test_kill_9_of_the_job_and_the_outer_guard_leaves_nothing(tree):
    """As a kernel short of memory might."""
    tree.outer.kill()
    tree.job.kill()
    tree.job.wait()
    assert tree.gone_within(2), tree.alive()


def test_kill_9_of_the_server_takes_its_children_along(tree):
    """Before the guard ends, so that a restart finds the GPU free."""
    server = tree.server()
    server.kill()
    tree.outer.wait(5)
    assert len(tree.alive()) == 1


@pytest.mark.parametrize("tree", [("stubborn",), ()], indirect=True)
def test_sigterm_ends_the_server_in_bounded_time_also_when_it_does_not_want_to(tree):
    """First SIGTERM, then the grace time, then SIGKILL."""
    tree.outer.send_signal(signal.SIGTERM)
    tree.outer.wait(5)
    assert len(tree.alive()) == 1


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command under the guard, with this process as the job."""
    words = [sys.executable, "-I", "-S", guard.__file__, "--parent", str(os.getpid()), "--grace", "1", "--", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)


def test_the_exit_code_is_handed_on():
    """Also a signal's, as 128 + its number."""
    assert run(sys.executable, "-c", "raise SystemExit(3)").returncode == 3
    assert run(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 137


def test_a_program_that_is_none_has_the_shells_exit_codes(tmp_path: Path):
    """127 not found, 126 not executable; and the reason in the log."""
    missing = run("no-such-program")
    assert (missing.returncode, missing.stderr) == (127, "guard: no-such-program: no such program\n")
    (tmp_path / "plain").write_text("x")
    assert run(str(tmp_path / "plain")).returncode == 126


def test_it_starts_at_once():
    """It imports nothing but the standard library."""
    begun_s = time.monotonic()
    assert run("true").returncode == 0
    assert time.monotonic() - begun_s < 2


def test_a_guard_whose_job_is_gone_already_starts_nothing_that_stays():
    """The job may die between fork and prctl."""
    words = [sys.executable, "-I", "-S", guard.__file__, "--parent", "1", "--grace", "1", "--", "sleep", "600"]
    begun_s = time.monotonic()
    assert subprocess.run(words, timeout=20, check=False).returncode == 137
    assert time.monotonic() - begun_s < 5
