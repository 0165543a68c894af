"""The output: the same rows in every format, whatever they hold."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.document import Media
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.storage.output import (
    JsonlWriter,
    OutputRow,
    OutputWriter,
    ParquetWriter,
    make_writer,
    read_rows,
)

WRITERS = [
    ParquetWriter("x"),
    ParquetWriter("x", compression="snappy"),
    ParquetWriter("x", compression="none", metadata_key="answers"),
    JsonlWriter("x"),
    JsonlWriter("x", compression="zstd", metadata_key="answers"),
]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(
    st.builds(
        OutputRow,
        id=st.text(max_size=8),
        text=st.text(),
        metadata=st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
        media=st.just([]),
        results=st.lists(VALUES, max_size=3),
    ),
    max_size=5,
)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS)
def test_json_that_is_encoded_already_is_written_as_it_is(writer: OutputWriter, rows: list[OutputRow]) -> None:
    """A row of raw JSON gives the bytes of the row of its values, so nothing is decoded on the way to the output."""

    def raw(value: Any) -> msgspec.Raw:
        return msgspec.Raw(strict_json.dumps(value))

    encoded = [OutputRow(row.id, row.text, raw(row.metadata), raw(row.media), [*map(raw, row.results)]) for row in rows]
    assert writer.encode(encoded) == writer.encode(rows)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS)
def test_rows_come_back_as_they_went(writer: OutputWriter, rows: list[OutputRow]) -> None:
    """Any JSON value, any text, in order; and equal rows give equal bytes."""
    data = writer.encode(rows)
    assert read_rows(data, writer.extension, writer.metadata_key) == rows
    assert writer.encode(iter(rows)) == data


@pytest.mark.parametrize("writer", WRITERS)
def test_odd_characters_are_written(writer: OutputWriter) -> None:
    """Line breaks of all kinds stay; a lone surrogate becomes U+FFFD; no row is lost."""
    text = "a\nb\r\nc\u2028d\u0085e\x1cf\x00g\ud83dh\U0001f600"
    rows = [OutputRow(f"id{text}", text, {text: text}, [], [text, {"text": text}]), OutputRow("2", "", {}, [], [])]
    clean = text.replace("\ud83d", "\ufffd")
    first, second = read_rows(writer.encode(rows), writer.extension, writer.metadata_key)
    assert first == OutputRow(f"id{clean}", clean, {clean: clean}, [], [clean, {"text": clean}])
    assert second.id == "2"


@pytest.mark.parametrize("writer", WRITERS)
def test_media_are_written_with_their_bytes(writer: OutputWriter) -> None:
    """As Media or as dicts; bytes as base64."""
    media: list[Any] = [Media("m", "image", media_bytes=b"\xff"), {"id": "n", "media_bytes": b"\xfe"}]
    [row] = read_rows(writer.encode([OutputRow("1", "", {}, media, [])]), writer.extension, writer.metadata_key)
    assert [medium["media_bytes"] for medium in row.media] == ["/w==", "/g=="]


def test_deviating_rows_do_not_change_the_schema(tmp_path: Path) -> None:
    """Other types, other keys, other order, nothing at all: all chunks read as one table."""
    writer = ParquetWriter(tmp_path)
    variants: list[list[OutputRow]] = [
        [OutputRow("1", "t", {"n": 1, "s": None}, [], [1])],
        [
            OutputRow("2", "t", {"s": "x", "n": 1.5}, [], [{"a": {}}]),
            OutputRow("3", "t", {"n": "str"}, [], ["s", None]),
        ],
        [OutputRow("4", "t", {}, [], [])],
        [],
    ]
    for number, rows in enumerate(variants):
        (tmp_path / f"{number}.parquet").write_bytes(writer.encode(rows))
    table = pyarrow.dataset.dataset(tmp_path).to_table()
    assert table.column("id").to_pylist() == ["1", "2", "3", "4"]
    assert table.schema.names == ["id", "text", "metadata", "media", "rollout_results"]
    assert table.schema.field("rollout_results").type == pa.list_(pa.string())
    assert table.column("rollout_results").to_pylist()[1:3] == [['{"a":{}}'], ['"s"', "null"]]


def test_ids_can_be_read_alone() -> None:
    """And the file is compressed as asked."""
    data = ParquetWriter("x").encode([OutputRow("1", "t", {}, [], [])])
    assert pq.read_table(io.BytesIO(data), columns=["id"]).to_pylist() == [{"id": "1"}]
    assert pq.read_metadata(io.BytesIO(data)).row_group(0).column(0).compression == "ZSTD"


def test_a_line_is_what_any_reader_expects() -> None:
    """One strict JSON object per line feed, with the results under their key."""
    rows = [OutputRow(str(number), "t", {"n": float("nan")}, [], [1]) for number in range(3)]
    data = JsonlWriter("x", metadata_key="answers").encode(rows)
    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert [orjson.loads(line)["id"] for line in lines] == ["0", "1", "2"]
    assert orjson.loads(lines[0]) == {"id": "0", "text": "t", "metadata": {"n": None}, "media": [], "answers": [1]}
    packed = JsonlWriter("x", metadata_key="answers", compression="zstd").encode(rows)
    assert zstandard.decompress(packed) == data


@pytest.mark.parametrize("writer", WRITERS)
def test_a_value_without_a_json_form_is_an_error(writer: OutputWriter) -> None:
    """Never a row that is left out; the error names the type."""
    with pytest.raises(TypeError, match="object"):
        writer.encode([OutputRow("1", "t", {}, [], [object()])])


@pytest.mark.parametrize("key", ["id", "text", "metadata", "media", ""])
def test_the_results_need_a_column_of_their_own(key: str) -> None:
    """Where the writer is made."""
    for make in (ParquetWriter, JsonlWriter):
        with pytest.raises(ConfigError, match="metadata_key"):
            make("x", metadata_key=key)


def test_a_job_spec_names_its_writer() -> None:
    """By output_format."""
    kinds = {name: make_writer(name, "x", metadata_key="k") for name in ("parquet", "jsonl", "jsonl.zst")}  # type: ignore[arg-type]
    assert {name: writer.extension for name, writer in kinds.items()} == {name: name for name in kinds}
    assert {writer.metadata_key for writer in kinds.values()} == {"k"}
    assert {writer.uri for writer in kinds.values()} == {"x"}
    for make in (
        lambda: make_writer("csv", "x"),  # type: ignore[arg-type]
        lambda: ParquetWriter("x", compression="lzo"),  # type: ignore[arg-type]
        lambda: JsonlWriter("x", compression="gzip"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            make()


def test_another_extension_is_no_output() -> None:
    """Reading says so."""
    with pytest.raises(ValueError, match="no output format"):
        read_rows(b"", "csv")
