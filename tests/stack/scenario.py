"""One scenario: documents, a server that counts, and what the jobs have left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from servers.airflow_stack import wait_until
from servers.rollout_job import DummyProcess, dummy_process

from airflow_provider_rollout.engine.progress import AttemptRecord
from airflow_provider_rollout.engine.run_state import RunState
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import read_rows


@dataclass(frozen=True)
class Scenario:
    """Where it plays.

    Attributes:
        folder: documents and answers.
        server: counts requests.
        ids: the documents.
    """

    folder: Path
    server: DummyProcess
    ids: list[str]

    @property
    def output(self) -> Path:
        """Where the answers go."""
        return self.folder / "answers"

    @property
    def conf(self) -> dict[str, str]:
        """What a DAG run needs to know."""
        return {"source": f"{self.folder}/*.jsonl", "output": str(self.output), "url": self.server.url}

    @property
    def requests(self) -> int:
        """How many requests have arrived at the server."""
        return int(self.server.stats().get("requests", 0))

    @property
    def launches(self) -> int:
        """How many jobs were to be started."""
        return len(list((self.output / "_rollout" / "specs").glob("*.json")))

    def attempts(self, rank: int = 0) -> list[AttemptRecord]:
        """Those that claimed the rank."""

        async def read() -> list[AttemptRecord]:
            run = await RunState.find(str(self.output))
            return (await run.attempts()).get(rank, [])

        return asyncio.run(read())

    def jobs(self) -> list[psutil.Process]:
        """The job processes that live."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = process.info["cmdline"] or []
            if any(str(self.output) in part for part in command) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def wait_job(self) -> psutil.Process:
        """The first job process to appear."""
        wait_until(lambda: bool(self.jobs()), 60, "a job has started")
        return self.jobs()[0]

    def wait_requests(self, count: int) -> None:
        """Until so many have arrived."""
        wait_until(lambda: self.requests >= count, 60, f"{count} requests have arrived")

    def answered(self) -> list[str]:
        """The ids of all rows, in the order of the files."""

        async def read() -> list[str]:
            store = ObjectStore.open(str(self.output))
            keys = [info.key for info in await store.list() if info.key.endswith(".parquet")]
            rows = [row for key in keys for row in read_rows(await store.get(key), "parquet", "rollout_results")]
            return [row.id for row in rows]

        return asyncio.run(read())

    def check_complete(self) -> None:
        """Every document is there, once, in order; and no job is left."""
        assert self.answered() == self.ids
        assert self.jobs() == []


def write_shard(path: Path, ids: list[str]) -> None:
    """Documents that can be told apart by their text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": name, "text": f"document {name}"}) + "\n" for name in ids))


@contextmanager
def scenario(folder: Path, documents: int, *flags: Any) -> Iterator[Scenario]:
    """Documents and a server with these flags."""
    ids = [f"{number:03d}" for number in range(documents)]
    write_shard(folder / "shard.jsonl", ids)
    with dummy_process("--model", "dummy", *map(str, flags)) as server:
        yield Scenario(folder, server, ids)
