"""The state of a whole run, seen from outside: every rank's attempts and manifests, found from one URI.

Receives: the URI of an output or of its checkpoints.        Hands on: RankStatus for each rank; an emptied state.
Invariants: looking writes nothing. The age of a heartbeat is the time, on this process's own clock, since its object was last seen to
change. A state is only emptied by whoever holds the newest attempt of every rank, so a job that is asleep wakes up fenced.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from airflow_provider_rollout.engine.config import job_spec_from_bytes
from airflow_provider_rollout.engine.exceptions import CheckpointError, FencedError, InputError, ObjectNotFoundError
from airflow_provider_rollout.engine.progress import AttemptRecord, Progress, judge
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import Attempt, process_is_gone
from airflow_provider_rollout.engine.storage.manifest import RankManifest, read_rank_manifest
from airflow_provider_rollout.engine.storage.object_store import ObjectInfo, ObjectStore

__all__ = ["LOST_AFTER_S", "RankStatus", "RunState", "Watch"]

S = TypeVar("S")
T = TypeVar("T")

LOST_AFTER_S = 60.0  # the default of JobSpec.attempt_lost_after_sec
_PARALLEL_CALLS = 32
_ATTEMPTS = "attempts/"
_OUTPUT_OBJECT = re.compile(r"\d{5,}_chunk_\d{5,}\.[a-z.]+\Z")  # what layout.output spells
_PREFIXES = (
    layout.MANIFESTS,
    layout.JOB,
    layout.PLAN,
    "chunks/",
    "failed/",
    "cache/",
    "cancel/",
    "reported/",
    layout.SPECS,
    _ATTEMPTS,
)


@dataclass(frozen=True, slots=True)
class RankStatus:
    """How one rank stands.

    Attributes:
        rank: which.
        progress: the judgement of its newest attempt; "starting" when it has none yet.
        heartbeat_age_s: seconds since this version of the record was first seen; None without a record.
        has_moved: whether the record was seen to change, so that the age is exact and not a lower bound.
    """

    rank: int
    progress: Progress
    heartbeat_age_s: float | None = None
    has_moved: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether looking longer would not tell more."""
        return self.has_moved or self.progress.ended or self.progress.record is None


class _WorldSize(msgspec.Struct):
    """The part of the input plan that tells how many ranks there are."""

    world_size: int


class RunState:
    """The state below one checkpoints URI; made by `find`."""

    def __init__(self, store: ObjectStore, output_uri: str | None) -> None:
        self.store = store
        self._output_uri = output_uri

    @classmethod
    async def find(cls, uri: str) -> Self:
        """Find the state of a run.

        Args:
            uri: its output or its checkpoints.

        Raises:
            InputError: there is no state at the URI nor in ``_rollout`` below it.
        """
        uri = uri.rstrip("/") or uri
        below = f"{uri}/_rollout"
        for place, output_uri in ((uri, None), (below, uri)):
            if _is_missing_folder(place):
                continue
            store = ObjectStore.open(place, make_folder=False)
            if await store.list(_ATTEMPTS) or await store.exists(layout.PLAN):
                return cls(store, output_uri)
        raise InputError(f"no run at {uri} nor at {below}; give the run's --output, or its --checkpoints if it had any")

    async def world_size(self) -> int | None:
        """How many ranks the run has, or None before the first has made the plan."""
        try:
            return msgspec.json.decode(await self.store.get(layout.PLAN), type=_WorldSize).world_size
        except ObjectNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{self.store.uri}/{layout.PLAN} is not an input plan: {error}") from None

    async def attempts(self) -> dict[int, list[AttemptRecord]]:
        """Every attempt of every rank, oldest first."""
        found: dict[int, list[AttemptRecord]] = {}
        for record, _ in await self._read(await self.store.list(_ATTEMPTS)):
            found.setdefault(record.rank, []).append(record)
        return found

    async def newest_attempts(self) -> dict[int, tuple[AttemptRecord, ObjectInfo]]:
        """The newest attempt of every rank that has one."""
        newest: dict[str, ObjectInfo] = {}
        for info in await self.store.list(_ATTEMPTS):
            newest[info.key.rpartition("/")[0]] = info
        return {record.rank: (record, info) for record, info in await self._read(newest.values())}

    async def manifests(self) -> list[RankManifest]:
        """The manifests of the ranks that are done, by rank."""
        ranks = [layout.number(info.key) for info in await self.store.list(layout.MANIFESTS)]
        read = await _bounded(lambda rank: read_rank_manifest(self.store, rank), ranks)
        return [manifest for manifest in read if manifest is not None]

    async def output_uri(self) -> str:
        """Where the run writes.

        Raises:
            InputError: nothing that the run has stored tells.
        """
        if self._output_uri is not None:
            return self._output_uri
        for manifest in await self.manifests():
            return manifest.output
        for info in await self.store.list(layout.SPECS):
            return job_spec_from_bytes(await self.store.get(info.key)).output
        if self.store.uri.endswith("/_rollout"):
            return self.store.uri.removesuffix("/_rollout")
        raise InputError(f"{self.store.uri} does not tell where its output is; give the URI of the output instead")

    async def remove(self, *, with_output: bool) -> int:
        """Empty the state; returns how many objects were deleted.

        One attempt of each rank stays, as a mark that fences jobs which were believed dead.

        Raises:
            AttemptActiveError: a job is at work. Whether a silent one is takes `LOST_AFTER_S` to find out.
            FencedError: a job has started in the meantime.
        """
        outputs = ObjectStore.open(await self.output_uri(), make_folder=False) if with_output else None
        async with self._claims() as claims:
            # The proofs first: an interrupted removal leaves nothing that counts as done.
            deleted = await _remove_output(outputs) if outputs is not None else 0
            mine = {layout.attempt(claim.record.rank, claim.epoch) for claim in claims}
            for prefix in _PREFIXES:
                await _bounded(lambda claim: claim.beat(claim.record), claims)
                keys = [info.key for info in await self.store.list(prefix) if info.key not in mine]
                await self.store.delete(keys)
                deleted += len(keys)
            await _bounded(lambda claim: claim.settle(_emptied(claim.record)), claims)
        return deleted

    @asynccontextmanager
    async def _claims(self) -> AsyncIterator[list[Attempt]]:
        """The newest attempt of every rank, for as long as the block runs."""
        job_id = f"clean-{uuid.uuid4().hex[:12]}"
        claims: list[Attempt] = []

        async def claim(rank: int) -> None:
            claims.append(await Attempt.claim(self.store, rank=rank, job_id=job_id, lost_after_s=LOST_AFTER_S))

        async def release(claim: Attempt) -> None:
            with suppress(FencedError):  # whoever has come since owns the rank
                await claim.beat(msgspec.structs.replace(claim.record, state="cancelled"))

        try:
            await _bounded(claim, sorted(await self.newest_attempts()))
            yield claims
        finally:
            await _bounded(release, claims)

    async def _read(self, infos: Iterable[ObjectInfo]) -> list[tuple[AttemptRecord, ObjectInfo]]:
        return await _bounded(self._read_one, [info.key for info in infos])

    async def _read_one(self, key: str) -> tuple[AttemptRecord, ObjectInfo]:
        data, info = await self.store.get_with_info(key)
        try:
            return msgspec.json.decode(data, type=AttemptRecord), info
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{self.store.uri}/{key} is not an attempt record: {error}") from None


class Watch:
    """Looks at a run again and again, and knows since when each record stands still."""

    def __init__(self, state: RunState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._seen: dict[int, tuple[tuple[int, str], float, bool]] = {}

    async def look(self) -> list[RankStatus]:
        """How every rank stands now, by rank."""
        newest = await self._state.newest_attempts()
        ranks = sorted(newest.keys() | set(range(await self._state.world_size() or 0)))
        return [self._judge(rank, newest.get(rank)) for rank in ranks]

    def _judge(self, rank: int, newest: tuple[AttemptRecord, ObjectInfo] | None) -> RankStatus:
        if newest is None:
            return RankStatus(rank, Progress("starting", "no attempt yet"))
        record, info = newest
        version, now_s = (record.epoch, info.version), self._clock()
        seen, since_s, has_moved = self._seen.get(rank, (version, now_s, False))
        if seen != version:
            since_s, has_moved = now_s, True
        self._seen[rank] = (version, since_s, has_moved)
        progress = judge(
            record,
            job_id=record.job_id,
            liveness="gone" if process_is_gone(record.process) else "unknown",
            unchanged_s=now_s - since_s,
            lost_after_s=LOST_AFTER_S,
        )
        return RankStatus(rank, progress, now_s - since_s, has_moved)


def _is_missing_folder(uri: str) -> bool:
    scheme, separator, _ = uri.partition("://")
    if separator and scheme != "file":
        return False
    return not Path(unquote(urlsplit(uri).path) if separator else uri).expanduser().exists()


def _emptied(record: AttemptRecord) -> AttemptRecord:
    return msgspec.structs.replace(record, fingerprint="", rerun_token=None, error="the state was removed by its user")


async def _remove_output(outputs: ObjectStore) -> int:
    keys = [info.key for info in await outputs.list() if _OUTPUT_OBJECT.match(info.key)]
    await outputs.delete([layout.SUCCESS, layout.MANIFEST])
    await outputs.delete(keys)
    return len(keys)


async def _bounded(call: Callable[[S], Awaitable[T]], items: Iterable[S]) -> list[T]:
    """Call for every item, a few at a time; results in the order of the items; the first error ends all."""
    gate = asyncio.Semaphore(_PARALLEL_CALLS)

    async def one(item: S) -> T:
        async with gate:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
