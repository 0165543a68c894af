"""Rules of showing progress: a bar on a terminal, a few lines elsewhere, nothing on standard output."""

import os
import pty
import subprocess
import sys

SHOW = """
import logging, sys
from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity
from airflow_provider_rollout.engine.progress_bar import show_progress

def record(second, state="running"):
    return AttemptRecord(
        job_id="j", rank=0, epoch=1, state=state, fingerprint="f", process=ProcessIdentity("h", "b", 1, 0.0), started_at="",
        updated_at="", documents_total=100, documents_done=second, elapsed_s=float(second),
        rates_per_s={"requests_succeeded": 1.5},
    )

with show_progress() as show:
    logging.getLogger("httpx").info("HTTP Request: one of a million")
    logging.getLogger("user.rollout").info("said by the rollout")
    show(record(0, "starting_server"))
    for second in range(0, 100, 5):
        show(record(second))
    show(record(100, "succeeded"))
"""


def test_without_a_terminal_the_log_has_a_line_for_each_change_of_state():
    """A job of days in a pod does not fill its log."""
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if " documents, " in line]
    assert [line.split("documents")[0].split("rank ")[1].strip() for line in lines] == [
        "0 starting_server: 0/100",
        "0 running: 0/100",
        "0 succeeded: 100/100",
    ]
    assert done.stdout == ""
    assert "said by the rollout" in done.stderr
    assert "one of a million" not in done.stderr


def test_on_a_terminal_there_is_a_bar():
    """A person sees documents, rates and the time left in one line that moves."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal of a process that has ended is closed
            break
        if not data:
            break
        seen += data
    os.close(ours)
    text = seen.decode()
    assert "100/100" in text
    assert "1.5 req/s" in text
    assert "said by the rollout" in text
    assert done.stdout == b""
