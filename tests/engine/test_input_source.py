"""Shards or the caller's own documents."""

import time

import pytest

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Position
from airflow_provider_rollout.engine.exceptions import InputError, ShardError
from airflow_provider_rollout.engine.input_source import open_input
from airflow_provider_rollout.engine.storage.object_store import ObjectStore


async def opened(tmp_path, data, rank=0, world_size=1):
    return await open_input(
        data,
        ObjectStore.open(str(tmp_path / "state")),
        rank=rank,
        world_size=world_size,
        reader=ReaderConfig(),
        records_per_chunk=10,
        on_change="refuse",
        options=None,
    )


async def test_how_far_the_reader_has_come_tells_how_much_there_is(tmp_path):
    """By bytes for JSONL; nothing is claimed at the very beginning."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "x"}\n' * 100)
    source = await opened(tmp_path, [str(tmp_path / "*.jsonl")])
    documents = list(source.open_at(Position(), 0))
    assert source.estimate_total(0, Position()) is None
    assert source.estimate_total(50, documents[49].end) == 200
    assert source.estimate_total(150, documents[149].end) == 200


async def test_one_uri_is_as_good_as_a_list(tmp_path):
    """A string is not a sequence of documents."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    source = await opened(tmp_path, str(tmp_path / "a.jsonl"))
    assert [document.document.text for document in source.open_at(Position(), 0)] == ["x"]


async def test_documents_are_taken_as_they_come(tmp_path):
    """From any iterable, also an empty one."""
    source = await opened(tmp_path, (Document("x", str(number)) for number in range(3)))
    assert [document.number for document in source.open_at(Position(), 0)] == [0, 1, 2]
    assert list((await opened(tmp_path, [])).open_at(Position(), 0)) == []


async def test_what_is_neither_is_refused(tmp_path):
    """A missing file is named."""
    with pytest.raises(InputError, match="give URIs of shards, or Documents"):
        await opened(tmp_path, 3)
    with pytest.raises(ShardError, match=r"nowhere\.jsonl"):
        await opened(tmp_path, [str(tmp_path / "nowhere.jsonl")])


async def test_an_estimate_over_many_shards_takes_no_time(tmp_path):
    """It is made every second on the event loop."""
    for number in range(4000):
        (tmp_path / f"{number:05}.jsonl").write_text('{"text": "x"}\n')
    source = await opened(tmp_path, [str(tmp_path)])
    began_s = time.process_time()
    assert source.estimate_total(2000, Position(2000, 0)) == 4000
    assert time.process_time() - began_s < 0.2
