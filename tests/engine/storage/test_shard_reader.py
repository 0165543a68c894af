"""The shard reader: every row is one document or one counted bad row, wherever reading starts."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers.seaweedfs import S3Server
from shards import ODD_TEXT, SKIP, jsonl, read, shard_bytes, texts

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import NumberedDocument
from airflow_provider_rollout.engine.exceptions import ShardError
from airflow_provider_rollout.engine.storage.input_plan import changed_shards, make_plan
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.shard_reader import ReadStats, read_documents


async def test_occurrences_count_anew_in_each_chunk(tmp_path: Path) -> None:
    """So that no earlier chunk has to be read on resume."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(jsonl(*({"id": "same", "text": str(number)} for number in range(5))))
    documents = read(await make_plan([str(file)], 1), per_chunk=2)
    assert [(d.number, d.chunk_index, d.occurrence) for d in documents] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
        (4, 2, 0),
    ]


async def test_skipped_rows_are_counted_where_they_are(tmp_path: Path) -> None:
    """With the document that follows them, or as trailing; five are kept as examples."""
    bad = [
        b"null",
        b'"x"',
        b"[1]",
        b"17",
        b"{broken",
        b'{"text":"\xff"}',
        b'{"x":1}',
        b'{"text":null}',
        b'{"text":5}',
        b"\xff",
    ]
    file = tmp_path / "a.jsonl"
    file.write_bytes(
        b"\n".join([*bad[:3], b'{"text":"a"}', b"", b'{"text":"b"}', *bad[3:8], b'{"text":"c"}', *bad[8:10]])
    )
    stats = ReadStats()
    documents = read(await make_plan([str(file)], 1), reader=SKIP, stats=stats)
    assert [(d.document.text, d.bad_rows) for d in documents] == [("a", 3), ("b", 0), ("c", 5)]
    assert (stats.documents, stats.bad_rows, stats.trailing_bad_rows) == (3, 10, 2)
    assert len(stats.bad_row_examples) == 5
    assert stats.bad_row_examples[0] == f"{file}: line 1 is null and not an object"
    assert (stats.shards[str(file)].documents, stats.shards[str(file)].bad_rows) == (3, 10)


async def test_a_file_of_bad_rows_only_gives_no_document(tmp_path: Path) -> None:
    """All are trailing."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"null\n" * 7)
    stats = ReadStats()
    assert read(await make_plan([str(file)], 1), reader=SKIP, stats=stats) == []
    assert (stats.bad_rows, stats.trailing_bad_rows) == (7, 7)


LINES = st.one_of(
    st.just(b""),
    st.just(b"\r"),
    st.just(b"null"),
    st.just(b'{"text": 1}'),
    st.just(b"\xff\xfe"),
    st.text(max_size=8).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode("utf-8", "replace")),
    st.binary(max_size=6).map(lambda data: data.replace(b"\n", b"")),
)


FILES = st.tuples(st.lists(LINES, max_size=12), st.booleans(), st.booleans()).map(
    lambda parts: (b"\xef\xbb\xbf" if parts[2] else b"") + b"\n".join(parts[0]) + (b"\n" if parts[1] else b"")
)


def _plain(documents: Iterable[NumberedDocument]) -> list[tuple[str, str]]:
    return [(numbered.document.id, numbered.document.text) for numbered in documents]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=FILES, world_size=st.integers(1, 9), per_chunk=st.integers(1, 4))
def test_ranks_share_every_file_without_loss_or_overlap(
    tmp_path: Path, data: bytes, world_size: int, per_chunk: int
) -> None:
    """All ranks together read what one rank reads, in order; and from the end of any document follows the rest."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    whole_stats = ReadStats()
    whole = read(asyncio.run(make_plan([str(file)], 1)), reader=SKIP, stats=whole_stats)
    plan = asyncio.run(make_plan([str(file)], world_size))
    bad_rows = 0
    together: list[NumberedDocument] = []
    for rank in range(world_size):
        stats = ReadStats()
        mine = read(plan, rank, SKIP, per_chunk, stats=stats)
        assert [numbered.number for numbered in mine] == list(range(len(mine)))
        assert sum(numbered.bad_rows for numbered in mine) + stats.trailing_bad_rows == stats.bad_rows
        bad_rows += stats.bad_rows
        together += mine
        for index, numbered in enumerate(mine):
            rest = read(plan, rank, SKIP, per_chunk, start=numbered.end, start_number=index + 1)
            assert _plain(rest) == _plain(mine[index + 1 :])
            assert [d.end for d in rest] == [d.end for d in mine[index + 1 :]]
            assert [d.bad_rows for d in rest] == [d.bad_rows for d in mine[index + 1 :]]
            if (index + 1) % per_chunk == 0:
                assert rest == mine[index + 1 :]
    assert _plain(together) == _plain(whole)
    assert bad_rows == whole_stats.bad_rows


NAMES = ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.csv", "e.csv.gz", "f.tsv.zst", "g.parquet"]


@pytest.mark.parametrize("world_size", [1, 3, 12])
async def test_every_format_is_read_once_and_resumed_anywhere(store_uri: str, world_size: int) -> None:
    """All formats in one plan, in a folder and on S3, with quoted line feeds and members in the middle of a line."""
    store = ObjectStore.open(store_uri)
    expected = []
    for name in NAMES:
        rows = [{"text": f'{name} "{n}",\n{ODD_TEXT}\n\n', "id": f"{name}-{n}"} for n in range(7)]
        expected += [row["id"] for row in rows]
        await store.put(name, shard_bytes(name, rows))
    plan = await make_plan([store.uri], world_size)
    found: list[str] = []
    for rank in range(world_size):
        documents = read(plan, rank, per_chunk=2)
        found += [numbered.document.id for numbered in documents]
        assert all(ODD_TEXT in numbered.document.text for numbered in documents)
        for index in range(1, len(documents), 2):
            rest = read(plan, rank, per_chunk=2, start=documents[index].end, start_number=index + 1)
            assert rest == documents[index + 1 :]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
async def test_a_shard_of_zero_bytes_is_empty_and_told(tmp_path: Path, name: str) -> None:
    """It has no documents, in any format; the statistics name it."""
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "z.jsonl").write_bytes(b'{"text":"x"}')
    for world_size in (1, 4):
        plan = await make_plan([str(tmp_path)], world_size)
        stats = ReadStats()
        assert texts(itertools.chain.from_iterable(read(plan, rank, stats=stats) for rank in range(world_size))) == [
            "x"
        ]
        assert stats.empty_shards == [f"{tmp_path}/{name}"]


async def test_a_shard_that_changed_since_the_plan_is_refused(store_uri: str) -> None:
    """Changed, or gone; and the comparison of plans names it."""
    store = ObjectStore.open(store_uri)
    await store.put("a.jsonl", b'{"text":"1"}\n')
    plan = await make_plan([store.uri], 1)
    await store.put("a.jsonl", b'{"text":"2"}\n')
    now = await make_plan([store.uri], 1)
    assert changed_shards(plan, now) == [f"{store.uri}/a.jsonl has been written again since the plan was made"]
    with pytest.raises(ShardError, match=r"a\.jsonl: it has been written again"):
        read(plan)
    await store.delete(["a.jsonl"])
    with pytest.raises(ShardError, match=r"a\.jsonl: it is gone"):
        read(plan)


async def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A data set that is still being written is no input."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(jsonl({"text": "1"}, {"text": "2"}))
    reading = read_documents(await make_plan([str(file)], 1), 0, ReaderConfig(), 10)
    next(reading)
    with file.open("ab") as more:
        more.write(jsonl({"text": "3"}))
    with pytest.raises(ShardError, match="written again"):
        list(reading)


@pytest.mark.s3
async def test_a_resume_on_s3_reads_only_what_follows(s3: S3Server, faulty_s3: Any) -> None:
    """A plain shard is read from the byte on where the last chunk ended."""
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/in", s3.options(endpoint_url=faulty_s3.endpoint_url))
    await store.put("a.jsonl", jsonl(*({"text": "x" * 100_000, "id": n} for n in range(300))))
    options = s3.options(endpoint_url=faulty_s3.endpoint_url)
    plan = await make_plan([store.uri], 1, options)
    documents = list(itertools.islice(read_documents(plan, 0, ReaderConfig(), 10, options=options), 290))
    faulty_s3.seen.clear()
    rest = read(plan, start=documents[-1].end, start_number=290, options=options)
    assert [numbered.document.id for numbered in rest] == [str(n) for n in range(290, 300)]
    assert len(faulty_s3.seen) <= 2
