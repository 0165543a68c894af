"""The shard reader: every row is one document or one counted bad row, whatever the file holds and wherever reading starts."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
import io
import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers.seaweedfs import S3Server

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Media, NumberedDocument, Position
from airflow_provider_rollout.engine.exceptions import BadRowError, ShardError
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, changed_shards, make_plan
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import JsonlWriter, OutputRow, ParquetWriter
from airflow_provider_rollout.engine.storage.shard_reader import ReadStats, read_documents

SKIP = ReaderConfig(on_bad_row="skip")
ODD_TEXT = "a\u2028b\u2029c\u0085d\x1ce\x1df\x0bg\x0ch\ri"


def _read(
    plan: InputPlan, rank: int = 0, reader: ReaderConfig | None = None, per_chunk: int = 1000, **more: Any
) -> list[NumberedDocument]:
    return list(read_documents(plan, rank, reader or ReaderConfig(), per_chunk, **more))


def _texts(documents: Iterable[NumberedDocument]) -> list[str]:
    return [numbered.document.text for numbered in documents]


async def _one(tmp_path: Path, name: str, data: bytes, reader: ReaderConfig | None = None) -> list[NumberedDocument]:
    file = tmp_path / name
    file.write_bytes(data)
    return _read(await make_plan([str(file)], 1), reader=reader)


def _jsonl(*rows: Any) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


# Documents


async def test_a_row_becomes_a_document(tmp_path: Path) -> None:
    """Text, id and media have their places; all else is metadata."""
    row = {"id": 7, "text": "t", "url": "u", "n": None, "deep": {"a": [1]}, "media": [{"id": "m", "type": "image", "x": 1}]}
    [numbered] = await _one(tmp_path, "a.jsonl", _jsonl(row))
    assert numbered.document == Document(
        text="t",
        id="7",
        media=[Media(id="m", type="image", metadata={"x": 1})],
        metadata={"url": "u", "n": None, "deep": {"a": [1]}},
    )
    assert (numbered.number, numbered.chunk_index, numbered.occurrence, numbered.bad_rows) == (0, 0, 0, 0)


async def test_fields_may_have_other_names(tmp_path: Path) -> None:
    """The usual ones are metadata then."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(_jsonl({"prompt": "p", "key": "k", "text": 1, "id": 2}))
    plan = await make_plan([str(file)], 1)
    [numbered] = _read(plan, reader=ReaderConfig(text_field="prompt", id_field="key"))
    assert numbered.document == Document(text="p", id="k", metadata={"text": 1, "id": 2})


async def test_rows_without_an_id_get_the_hash_of_their_content(tmp_path: Path) -> None:
    """Equal content, equal id; the occurrence tells them apart."""
    first, again, other = await _one(
        tmp_path, "a.jsonl", _jsonl({"text": "x"}, {"text": "x", "id": None}, {"text": "x", "n": 1, "id": ""})
    )
    assert first.document.id == again.document.id != other.document.id
    assert [first.key, again.key] == [first.document.id, f"{first.document.id}#1"]
    assert len(first.document.id) == 32


async def test_occurrences_count_anew_in_each_chunk(tmp_path: Path) -> None:
    """So that no earlier chunk has to be read on resume."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(_jsonl(*({"id": "same", "text": str(number)} for number in range(5))))
    documents = _read(await make_plan([str(file)], 1), per_chunk=2)
    assert [(d.number, d.chunk_index, d.occurrence) for d in documents] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
        (4, 2, 0),
    ]


async def test_numbers_that_strict_json_lacks_are_kept(tmp_path: Path) -> None:
    """NaN, infinities and integers of 70 bits, as values and as id."""
    line = b'{"id": 1180591620717411303424, "text": "t", "nan": NaN, "inf": -Infinity, "big": 1180591620717411303425}\n'
    [numbered] = await _one(tmp_path, "a.jsonl", line)
    assert numbered.document.id == "1180591620717411303424"
    assert math.isnan(numbered.document.metadata["nan"])
    assert numbered.document.metadata["inf"] == -math.inf
    assert numbered.document.metadata["big"] == 2**70 + 1


async def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
    """In text, id, names and values; a pair stays what it is."""
    line = rb'{"id": "i\ud83d", "text": "t\ude00 \ud83d\ude00", "m\ud800": ["\udfff"]}' + b"\n"
    [numbered] = await _one(tmp_path, "a.jsonl", line)
    assert numbered.document == Document(text="t\ufffd \U0001f600", id="i\ufffd", metadata={"m\ufffd": ["\ufffd"]})


@pytest.mark.parametrize("writer", [ParquetWriter("x"), JsonlWriter("x"), JsonlWriter("x", compression="zstd")])
async def test_our_own_output_can_be_input(tmp_path: Path, writer: ParquetWriter | JsonlWriter) -> None:
    """Metadata and media come back as they went, bytes included."""
    media = [Media(id="m", type="image", url="u", media_bytes=b"\xff\x00", alt="a", metadata={"k": 1})]
    metadata = {"n": 1, "deep": {"x": [None]}}
    row = OutputRow("i", ODD_TEXT, metadata, media, [{"text": "answer"}])
    [numbered] = await _one(tmp_path, f"a.{writer.extension}", writer.encode([row]))
    document = numbered.document
    assert (document.id, document.text, document.media) == ("i", ODD_TEXT, media)
    results = document.metadata.pop("rollout_results")
    assert document.metadata == metadata
    assert results in ([{"text": "answer"}], ['{"text":"answer"}'])


async def test_datatrove_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """Its metadata is the metadata; a metadata that is no object is a field like any other."""
    documents = await _one(
        tmp_path,
        "a.jsonl",
        _jsonl({"text": "a", "id": "1", "metadata": {"k": 1, "j": 2}, "j": 3}, {"text": "b", "id": "2", "metadata": [1]}),
    )
    assert [d.document.metadata for d in documents] == [{"k": 1, "j": 3}, {"metadata": [1]}]
    assert [d.document.media for d in documents] == [[], []]


# Lines


async def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """Not U+2028, U+0085, form feed, nor a bare carriage return inside JSON's white space."""
    data = _jsonl({"text": ODD_TEXT, "id": "1"}) + b'{"text":\r"x",\r"id": "2"}\n'
    assert _texts(await _one(tmp_path, "a.jsonl", data)) == [ODD_TEXT, "x"]


@pytest.mark.parametrize(
    "data",
    [
        b'{"text":"a"}\n{"text":"b"}\n',
        b'{"text":"a"}\n{"text":"b"}',
        b'{"text":"a"}\r\n{"text":"b"}\r\n',
        b'\xef\xbb\xbf{"text":"a"}\n{"text":"b"}\n',
        b'\n\n  \t\n{"text":"a"}\n\r\n \n{"text":"b"}\n\n\n',
        b'\xef\xbb\xbf\n{"text":"a"}\n{"text":"b"}',
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
async def test_ends_of_lines_blank_lines_and_byte_order_marks(tmp_path: Path, data: bytes, suffix: str) -> None:
    """Blank lines are no rows and not counted as bad; the last line feed may be missing."""
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    documents = await _one(tmp_path, f"a.jsonl{suffix}", pack(data))
    assert _texts(documents) == ["a", "b"]
    assert [d.bad_rows for d in documents] == [0, 0]


BAD_LINES = {
    b"null": "is null and not an object",
    b'"x"': "is a string and not an object",
    b"[1]": "is a list and not an object",
    b"17": "is a number and not an object",
    b"{broken": "is not JSON",
    b'{"text":"a"}{"text":"b"}': "is not JSON",
    b'{"text":"\xff"}': "is not UTF-8",
    b"\xff\xfe{": "is not UTF-8",
    b'{"x":1}': "has no field 'text'; its fields are: x",
    b'{"text":null}': "has null as 'text' and not a string",
    b'{"text":5}': "has a number as 'text'",
    b'{"text":["a"]}': "has a list as 'text'",
    b'{"text":"a","id":[1]}': "has a list as 'id'",
    b'{"text":"a","id":true}': "has a boolean as 'id'",
    b'{"text":"a","id":1.5}': "has a number as 'id'",
    b'{"text":"a","media":[{"media_bytes":"?"}]}': "not base64",
    b"[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=[str(n) for n in range(len(BAD_LINES))])
async def test_a_bad_row_ends_the_job_and_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    """Shard, line and reason, and what can be done."""
    with pytest.raises(BadRowError) as caught:
        await _one(tmp_path, "a.jsonl", b'{"text":"good"}\n\n' + line + b"\n")
    assert f"{tmp_path}/a.jsonl: line 3 " in str(caught.value)
    assert reason in str(caught.value)
    assert 'on_bad_row="skip"' in str(caught.value)


async def test_skipped_rows_are_counted_where_they_are(tmp_path: Path) -> None:
    """With the document that follows them, or as trailing; five are kept as examples."""
    bad = list(BAD_LINES)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join([*bad[:3], b'{"text":"a"}', b"", b'{"text":"b"}', *bad[3:8], b'{"text":"c"}', *bad[8:10]]))
    stats = ReadStats()
    documents = _read(await make_plan([str(file)], 1), reader=SKIP, stats=stats)
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
    assert _read(await make_plan([str(file)], 1), reader=SKIP, stats=stats) == []
    assert (stats.bad_rows, stats.trailing_bad_rows) == (7, 7)


# Every row once, from wherever

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


@pytest.fixture
def event_loop_free(tmp_path: Path) -> Path:
    """A folder for tests that make plans in a loop of their own."""
    return tmp_path


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=FILES, world_size=st.integers(1, 9), per_chunk=st.integers(1, 4))
def test_ranks_share_every_file_without_loss_or_overlap(
    event_loop_free: Path, data: bytes, world_size: int, per_chunk: int
) -> None:
    """All ranks together read what one rank reads, in order; and from the end of any document follows the rest."""
    import asyncio

    file = event_loop_free / "a.jsonl"
    file.write_bytes(data)
    whole_stats = ReadStats()
    whole = _read(asyncio.run(make_plan([str(file)], 1)), reader=SKIP, stats=whole_stats)
    plan = asyncio.run(make_plan([str(file)], world_size))
    bad_rows = 0
    together: list[NumberedDocument] = []
    for rank in range(world_size):
        stats = ReadStats()
        mine = _read(plan, rank, SKIP, per_chunk, stats=stats)
        assert [numbered.number for numbered in mine] == list(range(len(mine)))
        assert sum(numbered.bad_rows for numbered in mine) + stats.trailing_bad_rows == stats.bad_rows
        bad_rows += stats.bad_rows
        together += mine
        for index, numbered in enumerate(mine):
            rest = _read(plan, rank, SKIP, per_chunk, start=numbered.end, start_number=index + 1)
            assert _plain(rest) == _plain(mine[index + 1 :])
            assert [d.end for d in rest] == [d.end for d in mine[index + 1 :]]
            assert [d.bad_rows for d in rest] == [d.bad_rows for d in mine[index + 1 :]]
            if (index + 1) % per_chunk == 0:
                assert rest == mine[index + 1 :]
    assert _plain(together) == _plain(whole)
    assert bad_rows == whole_stats.bad_rows


def _shard_bytes(name: str, rows: list[dict[str, Any]]) -> bytes:
    if name.endswith(".parquet"):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=3)
        return sink.getvalue()
    if ".csv" in name or ".tsv" in name:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["text", "id"], delimiter="\t" if ".tsv" in name else ",")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
    else:
        data = _jsonl(*rows)
    if name.endswith(".gz"):
        half = len(data) // 2
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if name.endswith(".zst"):
        half = len(data) // 2
        return zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    return data


NAMES = ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.csv", "e.csv.gz", "f.tsv.zst", "g.parquet"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 12])
async def test_every_format_is_read_once_and_resumed_anywhere(store_uri: str, world_size: int) -> None:
    """All formats in one plan, in a folder and on S3, with quoted line feeds and members in the middle of a line."""
    store = ObjectStore.open(store_uri)
    expected = []
    for name in NAMES:
        rows = [{"text": f'{name} "{n}",\n{ODD_TEXT}\n\n', "id": f"{name}-{n}"} for n in range(7)]
        expected += [row["id"] for row in rows]
        await store.put(name, _shard_bytes(name, rows))
    plan = await make_plan([store.uri], world_size)
    found: list[str] = []
    for rank in range(world_size):
        documents = _read(plan, rank, per_chunk=2)
        found += [numbered.document.id for numbered in documents]
        assert all(ODD_TEXT in numbered.document.text for numbered in documents)
        for index in range(1, len(documents), 2):
            rest = _read(plan, rank, per_chunk=2, start=documents[index].end, start_number=index + 1)
            assert rest == documents[index + 1 :]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("rows_per_group", [1, 3, 100])
async def test_parquet_is_split_by_rows(tmp_path: Path, rows_per_group: int) -> None:
    """Eight ranks share one file, also one with a single row group, and fewer rows than ranks."""
    for rows in (1, 5, 20):
        file = tmp_path / f"{rows}.parquet"
        pq.write_table(pa.table({"text": [str(row) for row in range(rows)]}), file, row_group_size=rows_per_group)
        plan = await make_plan([str(file)], 8)
        parts = [_texts(_read(plan, rank)) for rank in range(8)]
        assert list(itertools.chain.from_iterable(parts)) == [str(row) for row in range(rows)]
        if rows >= 8:
            assert all(parts)


# Parquet


async def test_parquet_values_become_plain_values(tmp_path: Path) -> None:
    """Nested, null, bytes, times and decimals; the order of the columns does not matter."""
    table = pa.table(
        {
            "n": pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
            "when": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
            "deep": [{"a": [1, None], "b": None}],
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "took": pa.array([1500], pa.duration("ms")),
            "kind": pa.array(["x"]).dictionary_encode(),
            "text": pa.array(["t"], pa.large_string()),
            "id": pa.array([5], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    [numbered] = _read(await make_plan([str(tmp_path)], 1))
    assert numbered.document.metadata == {
        "n": "1.50",
        "when": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, dt.UTC),
        "deep": {"a": [1, None], "b": None},
        "pairs": [["k", 1]],
        "took": 1.5,
        "kind": "x",
    }
    assert (numbered.document.id, numbered.document.text) == ("5", "t")


async def test_a_null_text_and_bad_utf8_in_parquet_are_bad_rows(tmp_path: Path) -> None:
    """Only the row that is bad, with its number."""
    raw = pa.array([b"a", b"\xff", None, b"d"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    plan = await make_plan([str(tmp_path)], 1)
    stats = ReadStats()
    assert _texts(_read(plan, reader=SKIP, stats=stats)) == ["a", "d"]
    assert stats.bad_row_examples == [
        f"{tmp_path}/a.parquet: row 2 is not UTF-8",
        f"{tmp_path}/a.parquet: row 3 has null as 'text' and not a string",
    ]


# CSV


async def test_csv_quotes_and_wide_fields(tmp_path: Path) -> None:
    """Quoted line feeds, doubled quotes, a byte order mark, and a field above the csv module's limit."""
    wide = "w" * 300_000
    data = f'\ufeffid,text,n\r\n1,"a\n""b"", c",\r\n\r\n2,{wide},5'.encode()
    first, second = await _one(tmp_path, "a.csv", data)
    assert first.document == Document(text='a\n"b", c', id="1", metadata={"n": ""})
    assert (second.document.text, second.document.metadata) == (wide, {"n": "5"})


async def test_bad_rows_of_csv_are_named_by_line(tmp_path: Path) -> None:
    """Too few or too many fields, bad UTF-8, and a quote in the wrong place."""
    data = b'text,id\n"good\nrow",1\nshort\na,b,c\n\xff,2\n"x"y,3\nlast,4\n'
    file = tmp_path / "a.csv"
    file.write_bytes(data)
    stats = ReadStats()
    documents = _read(await make_plan([str(file)], 1), reader=SKIP, stats=stats)
    assert [(d.document.id, d.bad_rows) for d in documents] == [("1", 0), ("4", 4)]
    reasons = [example.removeprefix(f"{file}: the row at ") for example in stats.bad_row_examples]
    assert reasons[:3] == [
        "line 4 has 1 fields where the header has 2",
        "line 5 has 3 fields where the header has 2",
        "line 6 is not UTF-8",
    ]
    assert reasons[3].startswith("line 7 is not CSV: ")
    for index, document in enumerate(documents):
        rest = _read(await make_plan([str(file)], 1), reader=SKIP, start=document.end)
        assert _texts(rest) == _texts(documents[index + 1 :])


async def test_a_quote_that_is_never_closed_is_a_torn_file(tmp_path: Path) -> None:
    """It would swallow the rest of the file as one row, even where bad rows are skipped."""
    with pytest.raises(ShardError, match=r"a\.csv is torn as csv: a quote that opens at line 3"):
        await _one(tmp_path, "a.csv", b'text\nx\n"y\nz\n' * 1, SKIP)


# Shards that cannot be read

ROWS = _jsonl(*({"text": f"row {number} {os.urandom(20).hex()}"} for number in range(200)))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl.gz", gzip.compress(ROWS)[:-4], "is torn as gzip jsonl"),
        ("a.jsonl.gz", gzip.compress(ROWS)[:2000], "is torn as gzip jsonl"),
        ("a.jsonl.gz", ROWS, "cannot be read as gzip jsonl: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(ROWS) + b"garbage", "cannot be read as gzip jsonl"),
        ("a.jsonl.gz", gzip.compress(ROWS)[:-8] + b"12345678", "cannot be read as gzip jsonl: CRC check failed"),
        ("a.jsonl.zst", zstandard.compress(ROWS)[:-1], "cannot be read as zstd jsonl"),
        ("a.jsonl.zst", zstandard.compress(ROWS)[:2000], "cannot be read as zstd jsonl"),
        ("a.jsonl.zst", zstandard.compress(ROWS)[:3], "cannot be read as zstd jsonl"),
        ("a.jsonl.zst", ROWS, "cannot be read as zstd jsonl"),
        ("a.csv.gz", b"text\nx\n", "cannot be read as gzip csv"),
        ("a.parquet", ROWS, "cannot be read as parquet"),
        ("a.parquet", _shard_bytes("a.parquet", [{"text": "x"}])[:-9], "cannot be read as parquet"),
        ("a.parquet", _shard_bytes("a.parquet", [{"x": "x"}]), "it has no column 'text'; its columns are: x"),
        ("a.csv", b"x,y\n1,2\n", "it has no column 'text'; its columns are: x, y"),
        ("a.csv", b"text,text\n1,2\n", "more than one column 'text'"),
        ("a.csv", b'"text\n1,2\n', "header is not CSV"),
    ],
)
async def test_a_torn_or_mislabelled_shard_is_an_error(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    """Never taken for a short one, whatever is done about bad rows; the error names it."""
    for reader in (SKIP, ReaderConfig()):
        with pytest.raises(ShardError) as caught:
            await _one(tmp_path, name, data, reader)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
async def test_a_shard_of_zero_bytes_is_empty_and_told(tmp_path: Path, name: str) -> None:
    """It has no documents, in any format; the statistics name it."""
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "z.jsonl").write_bytes(b'{"text":"x"}')
    for world_size in (1, 4):
        plan = await make_plan([str(tmp_path)], world_size)
        stats = ReadStats()
        assert _texts(itertools.chain.from_iterable(_read(plan, rank, stats=stats) for rank in range(world_size))) == ["x"]
        assert stats.empty_shards == [f"{tmp_path}/{name}"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
async def test_a_shard_without_rows_is_empty(tmp_path: Path, name: str) -> None:
    """An empty member, a header alone, a schema alone."""
    empty = {".gz": gzip.compress(b""), ".zst": zstandard.compress(b""), ".csv": b"text,id\n"}
    table = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), table)
    data = empty.get(Path(name).suffix, table.getvalue())
    assert await _one(tmp_path, name, data) == []


async def test_a_shard_that_changed_since_the_plan_is_refused(store_uri: str) -> None:
    """Changed, or gone; and the comparison of plans names it."""
    store = ObjectStore.open(store_uri)
    await store.put("a.jsonl", b'{"text":"1"}\n')
    plan = await make_plan([store.uri], 1)
    await store.put("a.jsonl", b'{"text":"2"}\n')
    now = await make_plan([store.uri], 1)
    assert changed_shards(plan, now) == [f"{store.uri}/a.jsonl has been written again since the plan was made"]
    with pytest.raises(ShardError, match=r"a\.jsonl: it has been written again"):
        _read(plan)
    await store.delete(["a.jsonl"])
    with pytest.raises(ShardError, match=r"a\.jsonl: it is gone"):
        _read(plan)


async def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A data set that is still being written is no input."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(_jsonl({"text": "1"}, {"text": "2"}))
    reading = read_documents(await make_plan([str(file)], 1), 0, ReaderConfig(), 10)
    next(reading)
    with file.open("ab") as more:
        more.write(_jsonl({"text": "3"}))
    with pytest.raises(ShardError, match="written again"):
        list(reading)


async def test_a_resume_beyond_the_end_of_a_compressed_shard_is_an_error(tmp_path: Path) -> None:
    """The state belongs to a longer file."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text":"x"}\n'))
    with pytest.raises(ShardError, match="shorter than what has been read"):
        _read(await make_plan([str(tmp_path)], 1), start=Position(0, 500), start_number=1)


# Cost

MEASURE = """
    import asyncio, resource, sys
    from airflow_provider_rollout.engine.config import ReaderConfig
    from airflow_provider_rollout.engine.storage.input_plan import make_plan
    from airflow_provider_rollout.engine.storage.shard_reader import read_documents
    plan = asyncio.run(make_plan(sys.argv[1:], 1))
    count, first = 0, 0
    for numbered in read_documents(plan, 0, ReaderConfig(), 6000):
        count += 1
        if count == 2000:
            first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first) // 1024)
"""


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet"])
def test_memory_does_not_grow_with_the_shard(tmp_path: Path, suffix: str) -> None:
    """After the first rows, 60 MB more of them take less than 20 MB more."""
    count, text = 30_000, "x" * 2000
    file = tmp_path / f"big.{suffix}"
    if suffix == "parquet":
        table = pa.table({"text": [f"{number} {text}" for number in range(count)]})
        pq.write_table(table, file, row_group_size=count, use_dictionary=False, compression="none")
    elif suffix == "csv":
        file.write_text("text\n" + "".join(f"{number} {text}\n" for number in range(count)))
    else:
        data = "".join(f'{{"text":"{number} {text}"}}\n' for number in range(count)).encode()
        pack = {"jsonl": bytes, "jsonl.gz": lambda d: gzip.compress(d, 1), "jsonl.zst": zstandard.compress}[suffix]
        file.write_bytes(pack(data))
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(file)], capture_output=True, text=True, check=True
    )
    found, grown_mb = map(int, answer.stdout.split())
    assert found == count
    assert grown_mb < 20


@pytest.mark.s3
async def test_a_resume_on_s3_reads_only_what_follows(s3: S3Server, faulty_s3: Any) -> None:
    """A plain shard is read from the byte on where the last chunk ended."""
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/in", s3.options(endpoint_url=faulty_s3.endpoint_url))
    await store.put("a.jsonl", _jsonl(*({"text": "x" * 100_000, "id": n} for n in range(300))))
    options = s3.options(endpoint_url=faulty_s3.endpoint_url)
    plan = await make_plan([store.uri], 1, options)
    documents = list(itertools.islice(read_documents(plan, 0, ReaderConfig(), 10, options=options), 290))
    faulty_s3.seen.clear()
    rest = _read(plan, start=documents[-1].end, start_number=290, options=options)
    assert [numbered.document.id for numbered in rest] == [str(n) for n in range(290, 300)]
    assert len(faulty_s3.seen) <= 2
