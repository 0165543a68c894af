"""One scenario: documents, a server that counts, and what the jobs have left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from servers.airflow_stack import wait_until
from servers.rollout_job import DummyProcess, dummy_process

from airflow_provider_rollout.engine.progress import AttemptRecord
from airflow_provider_rollout.engine.run_state import RunState
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import read_rows


@dataclass(frozen=True)
class Scenario:
    """Where it plays.

    Attributes:
        root: documents and answers, in a folder or on S3.
        server: counts requests.
        ids: the documents.
    """

    root: str
    server: DummyProcess
    ids: list[str]

    @property
    def output(self) -> str:
        """Where the answers go."""
        return f"{self.root}/answers"

    @property
    def conf(self) -> dict[str, str]:
        """What a DAG run needs to know."""
        return {"source": f"{self.root}/*.jsonl", "output": self.output, "url": self.server.url}

    @property
    def requests(self) -> int:
        """How many requests have arrived at the server."""
        return int(self.server.stats().get("requests", 0))

    @property
    def launches(self) -> int:
        """How many jobs were to be started."""
        store = ObjectStore.open(f"{self.output}/_rollout")
        return len(asyncio.run(store.list(layout.SPECS)))

    def attempts(self, rank: int = 0) -> list[AttemptRecord]:
        """Those that claimed the rank."""

        async def read() -> list[AttemptRecord]:
            run = await RunState.find(self.output)
            return (await run.attempts()).get(rank, [])

        return asyncio.run(read())

    def jobs(self) -> list[psutil.Process]:
        """The job processes that live."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = process.info["cmdline"] or []
            if any(self.output in part for part in command) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def wait_watched(self) -> None:
        """Until whoever watches the first job has told metrics of it. A triggerer needs a while for the first connection that it reads."""
        store = ObjectStore.open(f"{self.output}/_rollout")
        wait_until(lambda: bool(asyncio.run(store.list("reported/"))), 90, "the job is watched")

    def wait_job(self) -> psutil.Process:
        """The first job process to appear."""
        wait_until(lambda: bool(self.jobs()), 60, "a job has started", every_s=0.02)
        return self.jobs()[0]

    def wait_requests(self, count: int) -> None:
        """Until so many have arrived."""
        wait_until(lambda: self.requests >= count, 60, f"{count} requests have arrived")

    def answered(self) -> list[str]:
        """The ids of all rows, in the order of the files."""

        async def read() -> list[str]:
            store = ObjectStore.open(self.output)
            keys = [info.key for info in await store.list() if info.key.endswith(".parquet")]
            rows = [row for key in keys for row in read_rows(await store.get(key), "parquet", "rollout_results")]
            return [row.id for row in rows]

        return asyncio.run(read())

    def exists(self, key: str) -> bool:
        """Whether there is such an object below the output."""
        return asyncio.run(ObjectStore.open(self.output).exists(key))

    def check_complete(self) -> None:
        """Every document is there, once, in order; and no job is left."""
        assert self.answered() == self.ids
        assert self.jobs() == []


def write_shard(root: str, name: str, ids: list[str]) -> None:
    """Documents that can be told apart by their text."""
    data = "".join(json.dumps({"id": name, "text": f"document {name}"}) + "\n" for name in ids).encode()
    asyncio.run(ObjectStore.open(root).put(name, data))


@contextmanager
def scenario(root: object, documents: int, *flags: Any) -> Iterator[Scenario]:
    """Documents and a server with these flags."""
    ids = [f"{number:03d}" for number in range(documents)]
    if ids:
        write_shard(str(root), "shard.jsonl", ids)
    with dummy_process("--model", "dummy", *map(str, flags)) as server:
        yield Scenario(str(root), server, ids)
