"""What the first attempt of a run pins for all later ones: the input plan and the fingerprint of the work.

Receives: the plan and the fingerprint as they are now.        Hands on: the pinned ones, or a refusal that names what changed.
Invariants: both are create-only, so that ranks that start at once agree; an unreadable one is an error and never an absent one.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from airflow_provider_rollout.engine.exceptions import (
    FingerprintMismatchError,
    ObjectExistsError,
)
from airflow_provider_rollout.engine.fingerprint import JobRecord, changed_keys
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, changed_shards
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.stored_record import read_record

__all__ = ["OnChange", "pin_job", "pin_plan"]

OnChange = Literal["refuse", "restart"]
_M = TypeVar("_M", bound=msgspec.Struct)


async def pin_plan(store: ObjectStore, now: InputPlan, on_change: OnChange) -> InputPlan:
    """Agree on the input plan.

    Raises:
        FingerprintMismatchError: the input has changed since the run began; names the shards.
    """
    pinned = await _pin(store, layout.PLAN, now)
    changes = changed_shards(pinned, now)
    if pinned.world_size != now.world_size:
        changes.insert(0, f"it was divided among {pinned.world_size} ranks and is now among {now.world_size}")
    if not changes:
        return pinned
    if on_change == "restart":
        await store.put(layout.PLAN, msgspec.json.encode(now))
        return now
    raise FingerprintMismatchError(
        f"the input of the run in {store.uri} has changed since it began: {'; '.join(changes[:5])}; restore the input, choose another "
        'output, or use on_config_change="restart" to begin anew'
    )


async def pin_job(store: ObjectStore, now: JobRecord, on_change: OnChange) -> JobRecord:
    """Agree on the work.

    Raises:
        FingerprintMismatchError: the configuration has changed since the run began; names the keys.
    """
    pinned = await _pin(store, layout.JOB, now)
    if pinned.fingerprint == now.fingerprint:
        return pinned
    changes = changed_keys(pinned, now)
    if on_change == "restart":
        await store.put(layout.JOB, msgspec.json.encode(now))
        return now
    raise FingerprintMismatchError(
        f"the run in {store.uri} was begun with another {', '.join(changes)}; go back to that, choose another output, or use "
        'on_config_change="restart" to begin anew'
    )


async def _pin(store: ObjectStore, key: str, now: _M) -> _M:
    present = await read_record(store, key, type(now))
    if present is not None:
        return present
    try:
        await store.create(key, msgspec.json.encode(now))
    except ObjectExistsError:
        return await _pin(store, key, now)
    return now
