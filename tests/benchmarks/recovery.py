"""What does not show in throughput: resume, a finished rank, pauses of the event loop, what a DAG file pays for the import.

Receives: a Bench.        Hands on: findings.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from contest import HERE, Bench, Finding, Server, bounded, fresh_folder, report_of, static_server
from servers.seaweedfs import run_seaweedfs

from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.request_cache import FLUSH_S

_CACHED_REQUESTS, _CALLS, _ENDLESS = 200_000, 4, 1_000
_RESUME_S, _FINISHED_S, _PAUSE_MS, _IMPORT_MS = 8.0, 2.0, 20.0, 15.0

_IMPORT = """
import time
from airflow.sdk import DAG, BaseHook, BaseOperator, dag, task
began_s = time.perf_counter()
import airflow_provider_rollout.operators.inference
print('{"import_ms": %f}' % (1000 * (time.perf_counter() - began_s)))
"""


def resume(bench: Bench) -> Iterator[Finding]:
    """A job is killed with 200,000 answers kept in one open chunk; how long until the next one asks for something new.

    Once the answers are finished documents; once they are calls of documents that nobody has finished, four of each, which are replayed.
    """
    kept = max(2_000, int(_CACHED_REQUESTS * bench.scale))
    documents = kept // _CALLS
    dialogue = ["--turns", str(_ENDLESS), "--documents", str(documents), "--tell-at", str(kept * 99 // 100)]
    yield from _resumed(
        f"{kept:,} finished documents", kept, bench.documents(_CACHED_REQUESTS + 20_000, text_bytes=400), []
    )
    source = bench.documents(_CACHED_REQUESTS // _CALLS, text_bytes=400)
    yield from _resumed(f"{kept:,} calls of {documents:,} documents", kept, source, dialogue)


def _resumed(what: str, kept: int, source: Path, flags: list[str]) -> Iterator[Finding]:
    with fresh_folder() as folder, run_seaweedfs(folder) as s3:
        with static_server(answered=kept) as server, _started(server, _job(source, folder / "state", *flags)) as job:
            while server.stats()["posts"] <= kept and job.poll() is None:
                time.sleep(0.05)
            time.sleep(FLUSH_S + 1.0)
            job.send_signal(signal.SIGKILL)
            if job.wait() != -signal.SIGKILL:
                raise RuntimeError("the job that was to be killed had ended by itself")
        state_mb = sum(path.stat().st_size for path in (folder / "state").rglob("*") if path.is_file()) / 1e6
        bucket = f"s3://{s3.new_bucket()}"
        asyncio.run(_copy(str(folder / "state"), bucket, s3.options()))
        for place, where in ((str(folder / "state"), f"in a folder ({state_mb:.0f} MB)"), (bucket, "on S3")):
            first_s, replayed_s = _first_request(_job(source, place, *flags), s3.environment(), is_replay=bool(flags))
            yield bounded(f"resume with {what} {where}: first new request", first_s, _RESUME_S, "s")
            if replayed_s is not None:
                yield bounded(f"resume with {what} {where}: 99 % of them replayed", replayed_s, None, "s")


def _first_request(
    command: list[str], environment: Mapping[str, str], *, is_replay: bool
) -> tuple[float, float | None]:
    """Seconds from the start of the process to its first request, and to the last replayed call; its own requests are never answered."""
    with static_server(answered=0) as server:
        began_s = time.monotonic()
        with _started(server, command, environment) as job:
            while server.stats()["first_post_at_s"] is None and job.poll() is None:
                time.sleep(0.02)
            assert job.stdout is not None
            told = json.loads(job.stdout.readline() or "{}") if is_replay else {}
            job.kill()
            if job.wait() != -signal.SIGKILL:
                raise RuntimeError("a job that was to resume has ended")
        first_s = server.stats()["first_post_at_s"]
    return first_s - began_s, told["told_at_s"] - began_s if is_replay else None


async def _copy(source: str, target: str, options: StoreOptions) -> None:
    """Move a run elsewhere, as its owner may: its state lies below its output."""
    here, there = ObjectStore.open(source), ObjectStore.open(target, options)
    for info in await here.list():
        await there.put(info.key, await here.get(info.key))


def finished_rank(bench: Bench) -> Iterator[Finding]:
    """A job that finds its rank done, from the start of Python to its end."""
    source = bench.documents(12_000)
    with fresh_folder() as folder, static_server() as server:
        command = [
            sys.executable,
            str(HERE / "our_run.py"),
            server.url,
            str(source),
            f"{folder}/out",
            f"{folder}/state",
        ]
        report_of(command)
        asked = server.stats()["posts"]
        times_s = []
        for _ in range(bench.rounds):
            began_s = time.monotonic()
            report_of(command)
            times_s.append(time.monotonic() - began_s)
        if server.stats()["posts"] != asked:
            raise RuntimeError("a finished rank asked the server for something")
    yield bounded("a finished rank, process start to end", statistics.median(times_s), _FINISHED_S, "s")


def pauses(bench: Bench) -> Iterator[Finding]:
    """How late the loop is while chunks of 6,000 documents go to S3; at twice the rate this machine is full, and lateness tells of that."""
    source = bench.documents(20_000)
    for delay_s, target_ms in ((1.0, _PAUSE_MS), (0.5, None)):
        with fresh_folder() as folder, run_seaweedfs(folder) as s3, static_server(delay_s) as server:
            place = f"s3://{s3.new_bucket()}"
            command = [sys.executable, str(HERE / "our_run.py"), server.url, str(source)]
            report = report_of([*command, f"{place}/out", f"{place}/state", "--pauses"], s3.environment())
        for name, target in (("p50", None), ("p99", target_ms), ("max", None)):
            label = f"event loop late, {name}, {report['per_s']:.0f} requests/s, chunks to S3"
            yield bounded(label, report[f"pause_{name}_ms"], target, "ms")


def import_time(bench: Bench) -> Iterator[Finding]:
    """What the operator's import adds to Airflow's own."""
    with fresh_folder() as folder:  # for the compiled files, which an installed package has
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}
        _, *runs = [report_of([sys.executable, "-c", _IMPORT], environment) for _ in range(2 * bench.rounds + 2)]
    took_ms = statistics.median(run["import_ms"] for run in runs)
    yield bounded("import of the operator, beyond airflow.sdk", took_ms, _IMPORT_MS, "ms")


def _job(source: Path, place: Path | str, *flags: str) -> list[str]:
    """A run of ours with its state below its output; the server's URL goes in after the second word."""
    flags = ("--records-per-chunk", "10000000", *flags)
    return [sys.executable, str(HERE / "our_run.py"), str(source), str(place), f"{place}/_rollout", *flags]


def _started(
    server: Server, command: list[str], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    command = [*command[:2], server.url, *command[2:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})
