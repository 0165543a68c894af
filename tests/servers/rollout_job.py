"""A rollout job and the dummy server as processes of their own, for tests that kill them.

Receives: a JobSpec.        Hands on: what the job left in the store, and what the server saw.
Invariant: a process dies with the test that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from airflow_provider_rollout.engine.config import JobSpec, job_spec_bytes
from airflow_provider_rollout.engine.exceptions import ObjectNotFoundError
from airflow_provider_rollout.engine.storage import layout, segment
from airflow_provider_rollout.engine.storage.attempt import latest_attempt
from airflow_provider_rollout.engine.storage.checkpoint import ChunkRecord
from airflow_provider_rollout.engine.storage.manifest import RankManifest, read_rank_manifest
from airflow_provider_rollout.engine.storage.object_store import ObjectInfo, ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.output import OutputRow, read_rows

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Runs in the child: the kernel kills it when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class DummyProcess:
    """A running dummy server."""

    url: str
    pid: int

    def stats(self) -> dict[str, Any]:
        """What it has seen."""
        stats: dict[str, Any] = httpx.get(f"{self.url}/stats", trust_env=False).json()
        return stats

    def requests_of(self, prompt: str) -> int:
        """How often this prompt arrived."""
        return int(self.stats()["by_prompt"].get(prompt_hash(prompt), 0))


def prompt_hash(prompt: str) -> str:
    """The name of a prompt in the server's stats."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


@contextmanager
def dummy_process(*flags: str) -> Iterator[DummyProcess]:
    """Serve on a free port."""
    command = [sys.executable, "-m", "airflow_provider_rollout.engine.serving.dummy", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield DummyProcess(next(word for word in line.split() if word.startswith("http")), process.pid)
        finally:
            process.kill()


class JobProcess:
    """One launch of a job; a process group of its own."""

    def __init__(
        self,
        spec: JobSpec,
        options: StoreOptions | None = None,
        *,
        log: Path,
        environment: dict[str, str] | None = None,
        largest_file_bytes: int | None = None,
    ) -> None:
        """Start it; its spec lies beside its log, so that a broken store can be tried too."""
        stored = log.with_name(f"{spec.job_id}.json")
        stored.write_bytes(job_spec_bytes(spec))
        command = [sys.executable, "-m", "airflow_provider_rollout.engine.cli", "run", "--spec", str(stored)]

        def prepare() -> None:
            die_with_parent()
            if largest_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))

        self.job_id = spec.job_id
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, **(options.to_environment() if options else {}), **(environment or {})},
                preexec_fn=prepare,
            )

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit code."""
        return self.process.wait(timeout_s)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the job, or to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


class State:
    """What a job has left in its stores; read with the blocking calls of a test."""

    def __init__(self, spec: JobSpec, options: StoreOptions | None = None) -> None:
        self.spec = spec
        self.store = ObjectStore.open(spec.checkpoints_uri, options)
        self.outputs = ObjectStore.open(spec.output, options)

    def chunks(self) -> list[ChunkRecord]:
        """The commit records, in order."""
        return asyncio.run(self._chunks())

    def rows(self) -> list[OutputRow]:
        """The rows of all committed chunks, in order; each object is the one that its record names."""
        return asyncio.run(self._rows())

    def durable_documents(self) -> set[int]:
        """Numbers of the documents that the store holds as finished: in done chunks, or in sound segments."""
        return asyncio.run(self._durable_documents())

    def all_objects(self) -> list[tuple[ObjectInfo, bytes]]:
        """Everything below the output."""

        async def read() -> list[tuple[ObjectInfo, bytes]]:
            return [(info, await self.outputs.get(info.key)) for info in await self.outputs.list()]

        return asyncio.run(read())

    def newest_job_id(self) -> str | None:
        """The job that has the newest attempt."""
        newest = asyncio.run(latest_attempt(self.store, self.spec.rank))
        return newest[0].job_id if newest else None

    def manifest(self) -> RankManifest | None:
        """The rank's manifest."""
        return asyncio.run(read_rank_manifest(self.store, self.spec.rank))

    async def _chunks(self) -> list[ChunkRecord]:
        infos = await self.store.list(layout.chunks(self.spec.rank))
        return [msgspec.json.decode(await self.store.get(info.key), type=ChunkRecord) for info in infos]

    async def _rows(self) -> list[OutputRow]:
        rows: list[OutputRow] = []
        for record in await self._chunks():
            if record.output_key is not None:
                data = await self.outputs.get(record.output_key)
                assert hashlib.sha256(data).hexdigest() == record.output_sha256, record.output_key
                rows += read_rows(data, record.output_key.partition(".")[2], self.spec.metadata_key)
        return rows

    async def _durable_documents(self) -> set[int]:
        numbers: set[int] = set()
        for record in await self._chunks():
            numbers.update(range(record.first_number, record.end_number))
        infos = await self.store.list(layout.cache(self.spec.rank))
        job = msgspec.json.decode(await self.store.get(layout.JOB)) if infos else {}
        for info in infos:
            try:
                data = await self.store.get(info.key)
            except ObjectNotFoundError:  # its chunks were committed meanwhile
                return await self._durable_documents()
            numbers.update(row.number for row in segment.decode(data, job["fingerprint"]) if row.number >= 0)
        return numbers
