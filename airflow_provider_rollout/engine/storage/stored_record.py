"""Typed records of the state: absent, readable or an error, and never one taken for the other.

Receives: a store, a key and the record's type.        Hands on: the record, or None when there is none.
Invariant: an object that exists and cannot be decoded is a CheckpointError that names it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from airflow_provider_rollout.engine.exceptions import CheckpointError, ObjectNotFoundError
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["read_record"]

R = TypeVar("R", bound=msgspec.Struct)


async def read_record(store: ObjectStore, key: str, kind: type[R]) -> R | None:
    """Read a record, or None when the key does not exist.

    Raises:
        CheckpointError: it exists and cannot be read.
    """
    try:
        return msgspec.json.decode(await store.get(key), type=kind)
    except ObjectNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"{store.uri}/{key} cannot be read as {kind.__name__}: {error}; restore it, or clean the run's state"
        ) from None
