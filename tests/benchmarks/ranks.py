"""Scale in simulation: ranks of a run of 1,000 over tiny documents, by the real runner and a real S3 server; requests are counted.

Receives: a Bench.        Hands on: findings: requests by kind, counted on the wire and as scale.py reckons them; the last rank's cost.
Invariant: rollouts answer without asking and documents are tiny, so that nothing but the state is at work.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
from contest import HERE, Bench, Finding, bounded, fresh_folder, static_server
from scale import BEAT, CHUNK, END, SEGMENT, Requests, finish_of, start_of
from servers.seaweedfs import run_seaweedfs

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, JsonlWriter
from airflow_provider_rollout.engine.storage.layout import rank_manifest
from airflow_provider_rollout.engine.storage.manifest import read_rank_manifest
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

_RANKS, _RANKS_AT_WORK, _AT_ONCE = 1_000, 200, 16
_CHUNKS, _DOCUMENTS_PER_CHUNK = 4, 5
_TOLERANCE = 0.05  # ranks that start at once may each read the plan twice


async def rollout(document: Document, generate: Any) -> str:
    """Answer without asking."""
    del generate
    return document.text


@contextmanager
def counted(endpoint_url: str) -> Iterator[tuple[str, Callable[[], Counter[str]]]]:
    """A proxy in front of the server; what it has counted since it was last asked."""
    command = [sys.executable, str(HERE / "counting_proxy.py"), str(urlsplit(endpoint_url).port)]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield url, lambda: Counter(json.load(opener.open(f"{url}/counts")))
        process.communicate()


def simulated(bench: Bench) -> Iterator[Finding]:
    """Some ranks of a run of many, side by side; then the last one, when the manifests of all others are there."""
    worked = max(40, int(_RANKS_AT_WORK * bench.scale))
    with (
        fresh_folder() as folder,
        run_seaweedfs(folder) as s3,
        counted(s3.endpoint_url) as (url, take),
        static_server() as server,
    ):
        options, bucket = s3.options(endpoint_url=url), f"s3://{s3.new_bucket()}"

        async def run_rank(rank: int) -> None:
            config = InferenceConfig(server_type="endpoint", endpoint_url=server.url, model_name_or_path="m")
            writer = JsonlWriter(f"{bucket}/out")
            runner = InferenceRunner(
                rollout, config, writer, records_per_chunk=_DOCUMENTS_PER_CHUNK, store_options=options
            )
            await runner.run_async([f"{bucket}/in/"], rank, _RANKS)

        asyncio.run(_upload_input(ObjectStore.open(f"{bucket}/in", options)))
        take()
        began_s = time.monotonic()
        asyncio.run(_side_by_side(run_rank, range(worked)))
        took_s, counts = time.monotonic() - began_s, take()
        yield bounded(
            f"{worked} of {_RANKS:,} ranks, {_CHUNKS} tiny chunks each, {_AT_ONCE} at once: per rank",
            1000 * took_s / worked,
            None,
            "ms",
        )
        yield from _compared(counts, worked)
        asyncio.run(_pretend_done(ObjectStore.open(f"{bucket}/out/_rollout", options), range(worked, _RANKS - 1)))
        take()
        began_s = time.monotonic()
        asyncio.run(run_rank(_RANKS - 1))
        took_s, counts = time.monotonic() - began_s, take()
    yield bounded(f"the last of {_RANKS:,} ranks, start to end", took_s, None, "s")
    reads, reckoned = counts["GET manifests"], finish_of(_RANKS).reads
    yield _near(f"the last of {_RANKS:,} ranks: manifests read", reads, reckoned)


def _compared(counts: Counter[str], ranks: int) -> Iterator[Finding]:
    """Segments and beats depend on the time that the ranks took, so these are taken as counted."""
    beats = counts["HEAD cancel"]
    steps = [
        (start_of(_RANKS), ranks),
        (CHUNK, ranks * _CHUNKS),
        (BEAT, beats),
        (SEGMENT, counts["PUT cache"]),
        (END, ranks),
    ]
    reckoned = sum((step * times for step, times in steps), Requests(reads=ranks))  # each reads its shard
    # Segments go with the last of their chunks, so most chunks delete none.
    reckoned = replace(reckoned, deletes=reckoned.deletes - (ranks * _CHUNKS - counts["PUT cache"]))
    for name, verbs in (("lists", ["LIST"]), ("reads", ["GET", "HEAD"]), ("writes", ["PUT"]), ("deletes", ["DELETE"])):
        seen = sum(count for kind, count in counts.items() if kind.split()[0] in verbs)
        yield _near(f"requests of a rank, {name}", seen / ranks, getattr(reckoned, name) / ranks)


def _near(what: str, seen: float, reckoned: float) -> Finding:
    ratio = seen / reckoned
    is_near = abs(ratio - 1.0) <= _TOLERANCE
    return Finding(what, f"{seen:.1f} seen", f"{reckoned:.1f} reckoned", f"{ratio:.3f}", f"1 ± {_TOLERANCE}", is_near)


async def _pretend_done(store: ObjectStore, ranks: range) -> None:
    """Manifests of ranks that are not run, made of one that was."""
    done = await read_rank_manifest(store, 0)
    assert done is not None

    async def write(rank: int) -> None:
        await store.put(rank_manifest(rank), msgspec.json.encode(msgspec.structs.replace(done, rank=rank)))

    await _side_by_side(write, ranks)


async def _side_by_side(work_on: Callable[[int], Awaitable[None]], numbers: range) -> None:
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await work_on(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


async def _upload_input(store: ObjectStore) -> None:
    lines = [json.dumps({"id": str(number), "text": "x"}) for number in range(_CHUNKS * _DOCUMENTS_PER_CHUNK)]

    async def upload(number: int) -> None:
        await store.put(f"{number:05d}.jsonl", "\n".join(lines).encode())

    await _side_by_side(upload, range(_RANKS))
