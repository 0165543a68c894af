"""Who may write for a rank, and how it is going.

Receives: the state's store and a rank.        Hands on: Attempt, through which every write goes that others will trust.
Invariants: an epoch is claimed by a create-only write, so exactly one process has it; only its owner rewrites the object. Before a
write that others will trust, an attempt looks whether a higher epoch exists; if so it is fenced and writes nothing more. Another
attempt's silence is measured on this process's own monotonic clock, never by comparing the clocks of two machines.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec
import psutil

from airflow_provider_rollout.engine.exceptions import (
    AttemptActiveError,
    CheckpointError,
    FencedError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from airflow_provider_rollout.engine.progress import ENDED, AttemptRecord, ProcessIdentity
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.object_store import ObjectInfo, ObjectStore

__all__ = ["HEARTBEAT_S", "Attempt", "latest_attempt", "process_is_gone", "this_process", "utc_now"]

_log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
_WATCH_S = 1.0  # how often a claimant looks whether the other attempt moves


def utc_now() -> str:
    """The time of day, for people; no decision is made on it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=1)
def this_process() -> ProcessIdentity:
    """This process, told apart from any other on any machine, container or boot."""
    process = psutil.Process()
    return ProcessIdentity(
        host=socket.gethostname(), boot_id=_boot_id(), pid=process.pid, start_time_s=round(process.create_time(), 2)
    )


def process_is_gone(identity: ProcessIdentity) -> bool:
    """Whether a process of this host has surely ended; False when it lives or belongs to another host."""
    here = this_process()
    if (identity.host, identity.boot_id) != (here.host, here.boot_id):
        return False
    try:
        other = psutil.Process(identity.pid)
        is_other = abs(other.create_time() - identity.start_time_s) > 1.0
        return is_other or bool(other.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def latest_attempt(store: ObjectStore, rank: int) -> tuple[AttemptRecord, ObjectInfo] | None:
    """The newest attempt of a rank.

    Raises:
        CheckpointError: it exists and cannot be read.
    """
    infos = await store.list(layout.attempts(rank))
    if not infos:
        return None
    key = infos[-1].key
    data, info = await store.get_with_info(key)
    try:
        return msgspec.json.decode(data, type=AttemptRecord), info
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"{store.uri}/{key} is not an attempt record: {error}; remove it if you know that no job runs"
        ) from None


class Attempt:
    """This process's claim on a rank; made by `claim`."""

    def __init__(self, store: ObjectStore, record: AttemptRecord, *, lost_after_s: float) -> None:
        self._store = store
        self._key = layout.attempt(record.rank, record.epoch)
        self.record = record
        self.heartbeat_s = min(HEARTBEAT_S, lost_after_s / 4)
        self._writing = asyncio.Lock()

    @classmethod
    async def claim(cls, store: ObjectStore, *, rank: int, job_id: str, lost_after_s: float = 60.0) -> Attempt:
        """Claim the next epoch of a rank.

        Waits while another attempt has neither ended nor moved, at most ``lost_after_s`` seconds; then takes over.

        Raises:
            AttemptActiveError: another attempt is at work; names it, its place and its start.
        """
        newest = await latest_attempt(store, rank)
        if newest is not None:
            await _wait_for_end(store, rank, newest, lost_after_s)
        now = utc_now()
        before = newest[0] if newest else None
        record = AttemptRecord(
            job_id=job_id,
            rank=rank,
            epoch=before.epoch + 1 if before else 1,
            state="running",
            fingerprint=before.fingerprint if before else "",
            rerun_token=before.rerun_token if before else None,
            process=this_process(),
            started_at=now,
            updated_at=now,
        )
        try:
            await store.create(layout.attempt(rank, record.epoch), msgspec.json.encode(record))
        except ObjectExistsError:
            winner = await latest_attempt(store, rank)
            raise _active(store, winner[0] if winner else record) from None
        return cls(store, record, lost_after_s=lost_after_s)

    @property
    def epoch(self) -> int:
        """The claimed epoch."""
        return self.record.epoch

    async def check_fence(self) -> None:
        """Look whether this attempt may still write.

        Raises:
            FencedError: a newer attempt exists.
        """
        newer = await self._store.list(layout.attempts(self.record.rank), start_after=self._key)
        if newer:
            raise FencedError(
                f"attempt {self.epoch} of rank {self.record.rank} of {self._store.uri} was replaced by attempt "
                f"{layout.number(newer[-1].key)}; this process writes nothing more"
            )

    async def beat(self, record: AttemptRecord) -> None:
        """Rewrite the attempt object with a grown heartbeat; what the attempt works for stays as `settle` has left it.

        Raises:
            FencedError: a newer attempt exists.
        """
        async with self._writing:
            await self.check_fence()
            now = self.record
            self.record = msgspec.structs.replace(
                record,
                fingerprint=now.fingerprint,
                rerun_token=now.rerun_token,
                heartbeat=now.heartbeat + 1,
                updated_at=utc_now(),
            )
            await self._store.put(self._key, msgspec.json.encode(self.record))

    async def settle(self, record: AttemptRecord) -> None:
        """Say what the attempt works for: fingerprint and rerun token. A beat that is under way does not undo it.

        Raises:
            FencedError: a newer attempt exists.
        """
        self.record = msgspec.structs.replace(
            self.record, fingerprint=record.fingerprint, rerun_token=record.rerun_token
        )
        await self.beat(record)

    async def create(self, store: ObjectStore, key: str, data: bytes) -> None:
        """Write an object once; replace what an earlier attempt left there when it died in between.

        Raises:
            FencedError: a newer attempt exists.
            ObjectChangedError: somebody else wrote the key at this moment.
        """
        await self.check_fence()
        try:
            await store.create(key, data)
        except ObjectExistsError:
            await self.check_fence()
            try:
                present, info = await store.get_with_info(key)
            except ObjectNotFoundError:
                await store.create(key, data)
                return
            if present != data:
                await store.replace(key, data, info.version)


async def _wait_for_end(
    store: ObjectStore, rank: int, newest: tuple[AttemptRecord, ObjectInfo], lost_after_s: float
) -> None:
    record, info = newest
    if record.state in ENDED or process_is_gone(record.process):
        return
    first_seen_s = time.monotonic()
    _log.info("%s; waiting %.0f s at most to see whether it still moves", _where(store, record), lost_after_s)
    while time.monotonic() - first_seen_s < lost_after_s:
        await asyncio.sleep(min(_WATCH_S, lost_after_s / 10))
        now = await latest_attempt(store, rank)
        if now is None or process_is_gone(record.process):
            return
        if now[1].version != info.version or now[0].epoch != record.epoch:
            if now[0].state in ENDED:
                return
            raise _active(store, now[0])


def _active(store: ObjectStore, record: AttemptRecord) -> AttemptActiveError:
    return AttemptActiveError(f"{_where(store, record)}; wait for it, or cancel it")


def _where(store: ObjectStore, record: AttemptRecord) -> str:
    process = record.process
    return (
        f"attempt {record.epoch} of rank {record.rank} of {store.uri} is at work since {record.started_at} in process {process.pid} on "
        f"{process.host} (job {record.job_id})"
    )


def _boot_id() -> str:
    """The boot and the pid namespace: a pid means nothing outside of them."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    parts = [boot.read_text().strip() if boot.exists() else str(psutil.boot_time())]
    if namespace.exists():
        parts.append(str(namespace.readlink()))
    return ":".join(parts)
