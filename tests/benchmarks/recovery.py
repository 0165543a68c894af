"""What does not show in throughput: resume, a finished rank, pauses of the event loop, what a DAG file pays for the import.

Receives: a Bench.        Hands on: findings.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from contest import HERE, Bench, Finding, Server, bounded, fresh_folder, report_of, static_server
from servers.seaweedfs import run_seaweedfs

_CACHED_REQUESTS = 200_000
_RESUME_S, _FINISHED_S, _PAUSE_MS, _IMPORT_MS = 8.0, 2.0, 20.0, 15.0

_IMPORT = """
import time
from airflow.sdk import DAG, BaseHook, BaseOperator, dag, task
began_s = time.perf_counter()
import airflow_provider_rollout.operators.inference
print('{"import_ms": %f}' % (1000 * (time.perf_counter() - began_s)))
"""


def resume(bench: Bench) -> Iterator[Finding]:
    """A job is killed after 200,000 answers in one open chunk; how long until the next one asks for something new."""
    kept = max(2_000, int(_CACHED_REQUESTS * bench.scale))
    source = bench.documents(_CACHED_REQUESTS + 20_000, text_bytes=400)
    with fresh_folder() as folder:
        command = _job(source, folder, "--records-per-chunk", "10000000")
        with static_server() as server, _started(server, command) as job:
            while server.stats()["posts"] < kept and job.poll() is None:
                time.sleep(0.05)
            job.send_signal(signal.SIGKILL)
        with static_server() as server:
            began_s = time.monotonic()
            with _started(server, command) as job:
                while server.stats()["first_post_at_s"] is None and job.poll() is None:
                    time.sleep(0.02)
                first_s = server.stats()["first_post_at_s"] or float("inf")
                job.kill()
        state_mb = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    yield bounded(
        f"first new request of a resume, {kept} cached ({state_mb:.0f} MB of state)", first_s - began_s, _RESUME_S, "s"
    )


def finished_rank(bench: Bench) -> Iterator[Finding]:
    """A job that finds its rank done, from the start of Python to its end."""
    source = bench.documents(12_000)
    with fresh_folder() as folder, static_server() as server:
        command = _job(source, folder)
        report_of([*command[:2], server.url, *command[2:]])
        asked = server.stats()["posts"]
        times_s = []
        for _ in range(bench.rounds):
            began_s = time.monotonic()
            report_of([*command[:2], server.url, *command[2:]])
            times_s.append(time.monotonic() - began_s)
        if server.stats()["posts"] != asked:
            raise RuntimeError("a finished rank asked the server for something")
    yield bounded("a finished rank, process start to end", statistics.median(times_s), _FINISHED_S, "s")


def pauses(bench: Bench) -> Iterator[Finding]:
    """Answers take 0.5 s, so that the loop is not busy with requests alone while chunks of 6,000 documents go to S3."""
    source = bench.documents(20_000)
    with fresh_folder() as folder, run_seaweedfs(folder) as s3, static_server(0.5) as server:
        place = f"s3://{s3.new_bucket()}"
        command = [sys.executable, str(HERE / "our_run.py"), server.url, str(source), f"{place}/out", f"{place}/state"]
        report = report_of([*command, "--pauses"], s3.environment())
    for name, target in (("p50", None), ("p99", _PAUSE_MS), ("max", None)):
        label = f"event loop late, {name}, {report['per_s']:.0f} requests/s, chunks to S3"
        yield bounded(label, report[f"pause_{name}_ms"], target, "ms")


def import_time(bench: Bench) -> Iterator[Finding]:
    """What the operator's import adds to Airflow's own."""
    with fresh_folder() as folder:  # for the compiled files, which an installed package has
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}
        _, *runs = [report_of([sys.executable, "-c", _IMPORT], environment) for _ in range(2 * bench.rounds + 2)]
    took_ms = statistics.median(run["import_ms"] for run in runs)
    yield bounded("import of the operator, beyond airflow.sdk", took_ms, _IMPORT_MS, "ms")


def _job(source: Path, folder: Path, *flags: str) -> list[str]:
    """A run of ours; the server's URL goes in after the second word."""
    return [sys.executable, str(HERE / "our_run.py"), str(source), str(folder / "out"), str(folder / "state"), *flags]


def _started(server: Server, command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*command[:2], server.url, *command[2:]], stdout=subprocess.DEVNULL)
