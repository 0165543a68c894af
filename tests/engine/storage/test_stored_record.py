"""Absent is not unreadable."""

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import CheckpointError
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.stored_record import read_record


class Thing(msgspec.Struct):
    """A record."""

    size: int


async def test_a_record_is_there_absent_or_an_error(tmp_path):
    """Three answers, and no two of them are alike."""
    store = ObjectStore.open(str(tmp_path))
    await store.put("good.json", b'{"size": 1}')
    assert await read_record(store, "good.json", Thing) == Thing(1)
    assert await read_record(store, "absent.json", Thing) is None


@pytest.mark.parametrize("data", [b"", b'{"size": ', b'{"size": "large"}', b"[]"])
async def test_torn_or_foreign_bytes_are_named(tmp_path, data):
    """A crash in the middle of a write never looks like a fresh start."""
    store = ObjectStore.open(str(tmp_path))
    await store.put("bad.json", data)
    with pytest.raises(CheckpointError, match=r"bad\.json cannot be read as Thing"):
        await read_record(store, "bad.json", Thing)
