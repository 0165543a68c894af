"""The rows of a shard: lines, Parquet, CSV, compression, and files that are torn."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import io
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from shards import ODD_TEXT, SKIP, jsonl, read, read_one, shard_bytes, texts

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Position
from airflow_provider_rollout.engine.exceptions import ShardError
from airflow_provider_rollout.engine.storage.input_plan import make_plan
from airflow_provider_rollout.engine.storage.shard_reader import ReadStats


async def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """Not U+2028, U+0085, form feed, nor a bare carriage return inside JSON's white space."""
    data = jsonl({"text": ODD_TEXT, "id": "1"}) + b'{"text":\r"x",\r"id": "2"}\n'
    assert texts(await read_one(tmp_path, "a.jsonl", data)) == [ODD_TEXT, "x"]


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
    documents = await read_one(tmp_path, f"a.jsonl{suffix}", pack(data))
    assert texts(documents) == ["a", "b"]
    assert [d.bad_rows for d in documents] == [0, 0]


@pytest.mark.parametrize("rows_per_group", [1, 3, 100])
async def test_parquet_is_split_by_rows(tmp_path: Path, rows_per_group: int) -> None:
    """Eight ranks share one file, also one with a single row group, and fewer rows than ranks."""
    for rows in (1, 5, 20):
        file = tmp_path / f"{rows}.parquet"
        pq.write_table(pa.table({"text": [str(row) for row in range(rows)]}), file, row_group_size=rows_per_group)
        plan = await make_plan([str(file)], 8)
        parts = [texts(read(plan, rank)) for rank in range(8)]
        assert list(itertools.chain.from_iterable(parts)) == [str(row) for row in range(rows)]
        if rows >= 8:
            assert all(parts)


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
    [numbered] = read(await make_plan([str(tmp_path)], 1))
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
    assert texts(read(plan, reader=SKIP, stats=stats)) == ["a", "d"]
    assert stats.bad_row_examples == [
        f"{tmp_path}/a.parquet: row 2 is not UTF-8",
        f"{tmp_path}/a.parquet: row 3 has null as 'text' and not a string",
    ]


async def test_csv_quotes_and_wide_fields(tmp_path: Path) -> None:
    """Quoted line feeds, doubled quotes, a byte order mark, and a field above the csv module's limit."""
    wide = "w" * 300_000
    data = f'\ufeffid,text,n\r\n1,"a\n""b"", c",\r\n\r\n2,{wide},5'.encode()
    first, second = await read_one(tmp_path, "a.csv", data)
    assert first.document == Document(text='a\n"b", c', id="1", metadata={"n": ""})
    assert (second.document.text, second.document.metadata) == (wide, {"n": "5"})


async def test_bad_rows_of_csv_are_named_by_line(tmp_path: Path) -> None:
    """Too few or too many fields, bad UTF-8, and a quote in the wrong place."""
    data = b'text,id\n"good\nrow",1\nshort\na,b,c\n\xff,2\n"x"y,3\nlast,4\n'
    file = tmp_path / "a.csv"
    file.write_bytes(data)
    stats = ReadStats()
    documents = read(await make_plan([str(file)], 1), reader=SKIP, stats=stats)
    assert [(d.document.id, d.bad_rows) for d in documents] == [("1", 0), ("4", 4)]
    reasons = [example.removeprefix(f"{file}: the row at ") for example in stats.bad_row_examples]
    assert reasons[:3] == [
        "line 4 has 1 fields where the header has 2",
        "line 5 has 3 fields where the header has 2",
        "line 6 is not UTF-8",
    ]
    assert reasons[3].startswith("line 7 is not CSV: ")
    for index, document in enumerate(documents):
        rest = read(await make_plan([str(file)], 1), reader=SKIP, start=document.end)
        assert texts(rest) == texts(documents[index + 1 :])


async def test_a_quote_that_is_never_closed_is_a_torn_file(tmp_path: Path) -> None:
    """It would swallow the rest of the file as one row, even where bad rows are skipped."""
    with pytest.raises(ShardError, match=r"a\.csv is torn as csv: a quote that opens at line 3"):
        await read_one(tmp_path, "a.csv", b'text\nx\n"y\nz\n', SKIP)


ROWS = jsonl(*({"text": f"row {number} {os.urandom(20).hex()}"} for number in range(200)))


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
        ("a.parquet", shard_bytes("a.parquet", [{"text": "x"}])[:-9], "cannot be read as parquet"),
        ("a.parquet", shard_bytes("a.parquet", [{"x": "x"}]), "it has no column 'text'; its columns are: x"),
        ("a.csv", b"x,y\n1,2\n", "it has no column 'text'; its columns are: x, y"),
        ("a.csv", b"text,text\n1,2\n", "more than one column 'text'"),
        ("a.csv", b'"text\n1,2\n', "header is not CSV"),
    ],
)
async def test_a_torn_or_mislabelled_shard_is_an_error(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    """Never taken for a short one, whatever is done about bad rows; the error names it."""
    for reader in (SKIP, ReaderConfig()):
        with pytest.raises(ShardError) as caught:
            await read_one(tmp_path, name, data, reader)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
async def test_a_shard_without_rows_is_empty(tmp_path: Path, name: str) -> None:
    """An empty member, a header alone, a schema alone."""
    empty = {".gz": gzip.compress(b""), ".zst": zstandard.compress(b""), ".csv": b"text,id\n"}
    table = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), table)
    data = empty.get(Path(name).suffix, table.getvalue())
    assert await read_one(tmp_path, name, data) == []


async def test_a_resume_beyond_the_end_of_a_compressed_shard_is_an_error(tmp_path: Path) -> None:
    """The state belongs to a longer file."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text":"x"}\n'))
    with pytest.raises(ShardError, match="shorter than what has been read"):
        read(await make_plan([str(tmp_path)], 1), start=Position(0, 500), start_number=1)


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
    """After the first rows, 36 MB more of them take less than 12 MB more."""
    count, text = 20_000, "x" * 2000
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
    assert grown_mb < 12
