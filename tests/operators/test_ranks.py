"""How many mapped tasks a dataset is worth."""

import asyncio

import pytest
from airflow_task import write_documents

from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.input_plan import make_plan
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.exceptions import RolloutConfigError
from airflow_provider_rollout.operators.ranks import plan_ranks


def ranks(count: int) -> list[dict[str, int]]:
    """What a mapped operator expands over."""
    return [{"rank": rank, "world_size": count} for rank in range(count)]


def test_as_many_ranks_as_the_data_are_worth(tmp_path):
    """One for each so many bytes; a single plain file is split."""
    source, out = write_documents(tmp_path / "in", count=100), str(tmp_path / "out")
    size_bytes = (tmp_path / "in" / "shard.jsonl").stat().st_size
    assert plan_ranks(source, out, max_ranks=8) == ranks(1)
    assert plan_ranks(source, out, max_ranks=8, bytes_per_rank=size_bytes // 4 + 1) == ranks(4)


def test_never_more_than_the_cap(tmp_path):
    """Whatever the size of the data."""
    source = write_documents(tmp_path / "in", count=100)
    assert plan_ranks(source, str(tmp_path / "out"), max_ranks=3, bytes_per_rank=1) == ranks(3)


def test_no_rank_without_work(tmp_path):
    """Compressed files are not split, and a rank of its own would have nothing to read."""
    import gzip

    write_documents(tmp_path / "in", count=100)
    plain = tmp_path / "in" / "shard.jsonl"
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert plan_ranks(f"{tmp_path}/in/*.gz", str(tmp_path / "out"), max_ranks=16, bytes_per_rank=1) == ranks(2)


def test_a_run_that_has_begun_keeps_its_ranks(tmp_path):
    """Clearing the planning task must not give its mapped tasks other parts."""
    source = write_documents(tmp_path / "in", count=100)
    plan = asyncio.run(make_plan([source], 5))
    import msgspec

    store = ObjectStore.open(f"{tmp_path}/out/_rollout")
    asyncio.run(store.put(layout.PLAN, msgspec.json.encode(plan)))
    assert plan_ranks(source, str(tmp_path / "out"), max_ranks=2) == ranks(5)


@pytest.mark.parametrize("bounds", [{"max_ranks": 0}, {"max_ranks": 1, "bytes_per_rank": 0}])
def test_a_wrong_bound_is_refused(tmp_path, bounds):
    """With its name."""
    with pytest.raises(RolloutConfigError, match="max_ranks"):
        plan_ranks(write_documents(tmp_path / "in"), str(tmp_path / "out"), **bounds)


def test_a_source_that_names_nothing_is_not_planned_again(tmp_path):
    """A retry would find nothing either."""
    with pytest.raises(RolloutConfigError, match=r"nothing\.jsonl"):
        plan_ranks(str(tmp_path / "nothing.jsonl"), str(tmp_path / "out"), max_ranks=2)
