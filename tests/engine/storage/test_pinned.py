"""What the first attempt pins, all others keep to."""

import asyncio

import msgspec
import pytest

from airflow_provider_rollout.engine.exceptions import CheckpointError, FingerprintMismatchError
from airflow_provider_rollout.engine.fingerprint import make_job_record
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.input_plan import make_plan
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.pinned import pin_job, pin_plan


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(str(tmp_path / "state"))


async def test_ranks_that_start_at_once_agree(store):
    """The create-only write decides, and all read it."""
    records = [make_job_record({"model": "m"}) for _ in range(8)]
    assert (
        len(
            {
                record.fingerprint
                for record in await asyncio.gather(*(pin_job(store, item, "refuse") for item in records))
            }
        )
        == 1
    )


async def test_a_changed_key_is_named_or_accepted(store):
    """Refuse says which; restart pins anew."""
    await pin_job(store, make_job_record({"model": "m", "seed": 1}), "refuse")
    changed = make_job_record({"model": "n", "seed": 1})
    with pytest.raises(FingerprintMismatchError, match="another model;"):
        await pin_job(store, changed, "refuse")
    assert await pin_job(store, changed, "restart") == changed
    assert await pin_job(store, changed, "refuse") == changed


async def test_a_changed_shard_is_named(store, tmp_path):
    """Input that changes under a run is not read as if it had not."""
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"text": "a"}\n')
    await pin_plan(store, await make_plan([str(shard)], 1), "refuse")
    shard.write_text('{"text": "a"}\n{"text": "b"}\n')
    now = await make_plan([str(shard)], 1)
    with pytest.raises(FingerprintMismatchError, match=r"a\.jsonl"):
        await pin_plan(store, now, "refuse")
    assert await pin_plan(store, now, "restart") == now


async def test_another_number_of_ranks_is_another_division_of_the_input(store, tmp_path):
    """Rank 1 of 2 is not rank 1 of 4."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 10)
    await pin_plan(store, await make_plan([str(tmp_path / "a.jsonl")], 4), "refuse")
    now = await make_plan([str(tmp_path / "a.jsonl")], 2)
    with pytest.raises(FingerprintMismatchError, match="divided among 4 ranks and is now among 2"):
        await pin_plan(store, now, "refuse")
    assert await pin_plan(store, now, "restart") == now


async def test_an_unreadable_pin_is_an_error(store):
    """A torn job.json does not start the run anew."""
    await store.put(layout.JOB, msgspec.json.encode({"fingerprint": 1}))
    with pytest.raises(CheckpointError, match=r"job\.json cannot be read"):
        await pin_job(store, make_job_record({}), "refuse")
