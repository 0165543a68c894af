"""The rows of one part of one shard, in every format.

Receives: an open file, a part and how far it has been read.        Hands on: RawRows with the offset after each.
Invariants: only a line feed ends a line of JSONL, whatever else Unicode calls a line break; a line belongs to the part
in which its first byte lies. Blank lines are no rows. A shard of zero bytes has no rows, whatever its format. Memory
does not grow with the shard. A torn or mislabelled file is an error even where bad rows are skipped: what is missing cannot
be counted.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rollout.engine.exceptions import ShardError
from airflow_provider_rollout.engine.storage.input_plan import Part, ShardFormat
from airflow_provider_rollout.engine.storage.row_decoder import NotADocumentError, decode_json

__all__ = ["RawRow", "raw_rows"]

_BUFFER_BYTES = 1024 * 1024
_DISCARD_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 512  # of Parquet, decoded at once


class RawRow(NamedTuple):
    """A row before it is a document.

    Attributes:
        values: its fields, or the problem with it.
        end: offset in the part after it.
        place: makes the words for where it is, "line 3".
    """

    values: Any
    end: int
    place: Callable[[], str]


def raw_rows(file: BinaryIO, shape: ShardFormat, part: Part, offset: int, text_field: str) -> Iterator[RawRow]:
    """Read a part from an offset on.

    Args:
        file: the shard, seekable, at its beginning; not empty.
        shape: its format.
        part: which stretch of it.
        offset: how far the part has been read, see Position.
        text_field: the column that CSV and Parquet must have.

    Raises:
        ShardError: there is no such column. The message lacks the shard's name.
        OSError, EOFError, ArrowException: the file is torn or mislabelled.
    """
    if shape.kind == "parquet":
        return _parquet_rows(file, part, offset, text_field)
    plain = _decompressed(file, shape)
    if shape.kind == "jsonl":
        return _jsonl_rows(plain, part, offset, seekable=shape.compression is None)
    return _csv_rows(plain, offset, text_field, delimiter="\t" if shape.kind == "tsv" else ",")


def _decompressed(file: BinaryIO, shape: ShardFormat) -> BinaryIO:
    if shape.compression == "gzip":
        return cast("BinaryIO", io.BufferedReader(cast("Any", gzip.GzipFile(fileobj=file)), _BUFFER_BYTES))
    if shape.compression == "zstd":  # pyarrow's sees a cut frame; the zstandard package's reader ends there in silence
        return cast("BinaryIO", io.BufferedReader(pa.CompressedInputStream(file, "zstd"), _BUFFER_BYTES))
    return file


def _jsonl_rows(file: BinaryIO, part: Part, offset: int, *, seekable: bool) -> Iterator[RawRow]:
    position = part.start + offset
    if seekable and offset == 0 and part.start > 0:  # to the first line that begins in this part
        file.seek(part.start - 1)
        position = part.start - 1 + len(file.readline())
    elif seekable:
        file.seek(position)
    else:
        _discard(file, position)
    number = 0 if position == 0 else None
    for line in file:
        begin = position
        if part.end is not None and begin >= part.end:
            return
        position += len(line)
        if number is not None:
            number += 1
        body = line.strip(b" \t\r\n")
        if begin == 0:
            body = body.removeprefix(codecs.BOM_UTF8).lstrip(b" \t")
        if body:
            yield RawRow(_json_values(body), position - part.start, _line_place(number, begin))


def _json_values(line: bytes) -> Any:
    try:
        return decode_json(line)
    except NotADocumentError as error:
        return error


def _line_place(number: int | None, begin: int) -> Callable[[], str]:
    return lambda: f"line {number}" if number is not None else f"the line at byte {begin}"


def _discard(file: BinaryIO, count: int) -> None:
    while count > 0:
        data = file.read(min(count, _DISCARD_BYTES))
        if not data:
            raise EOFError("it is shorter than what has been read of it before")
        count -= len(data)


class _CsvLines:
    """Lines of text for the csv module, which joins those that a quote holds together.

    Attributes:
        count: lines handed out.
        ended: whether there are no more.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            self.ended = True
            raise StopIteration
        if self.count == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        self.count += 1
        return line.decode(errors="surrogateescape")


def _csv_rows(file: BinaryIO, offset: int, text_field: str, *, delimiter: str) -> Iterator[RawRow]:
    csv.field_size_limit(sys.maxsize)  # the limit of 128 KiB is the process's, and too small for a document
    lines = _CsvLines(file)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise ShardError(f"its header is not CSV: {error}") from None
    _require(text_field, header)
    for number in itertools.count(1):
        begin = lines.count + 1
        try:
            row = next(rows, None)
            if row is None:
                return
            if not row:
                continue
            values = _csv_values(header, row)
        except csv.Error as error:
            if lines.ended:
                raise EOFError(f"a quote that opens at line {begin} or after is never closed") from None
            values = NotADocumentError(f"is not CSV: {error}")
        if number > offset:
            yield RawRow(values, number, lambda begin=begin: f"the row at line {begin}")  # type: ignore[misc]


def _csv_values(header: list[str], row: list[str]) -> Any:
    if len(row) != len(header):
        return NotADocumentError(f"has {len(row)} fields where the header has {len(header)}")
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return NotADocumentError("is not UTF-8")
    return dict(zip(header, row, strict=True))


def _parquet_rows(file: BinaryIO, part: Part, offset: int, text_field: str) -> Iterator[RawRow]:
    # Without the pre-buffer, which would hold a whole row group.
    source = pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    _require(text_field, source.schema_arrow.names)
    begin = part.start + offset
    end = source.metadata.num_rows if part.end is None else part.end
    first = 0
    for group in range(source.num_row_groups):
        count = source.metadata.row_group(group).num_rows
        if first < end and begin < first + count:
            for row, values in _group_rows(source, group, max(begin - first, 0), min(end - first, count)):
                yield RawRow(values, first + row + 1 - part.start, _row_place(first + row + 1))
        first += count


def _group_rows(source: pq.ParquetFile, group: int, begin: int, end: int) -> Iterator[tuple[int, Any]]:
    position = 0
    for batch in source.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], use_threads=False):
        low, high = max(begin - position, 0), min(end - position, batch.num_rows)
        if low < high:
            yield from enumerate(_batch_values(batch.slice(low, high - low)), position + low)
        position += batch.num_rows
        if position >= end:
            return


def _batch_values(batch: pa.RecordBatch) -> list[Any]:
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":  # Python's datetime has microseconds
            column = batch.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(index, field.name, column)
    try:
        return cast("list[Any]", batch.to_pylist())
    except UnicodeDecodeError:
        return [_row_values(batch.slice(row, 1)) for row in range(batch.num_rows)]


def _row_values(batch: pa.RecordBatch) -> Any:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError:
        return NotADocumentError("is not UTF-8")


def _row_place(number: int) -> Callable[[], str]:
    return lambda: f"row {number}"


def _require(text_field: str, columns: list[str]) -> None:
    if text_field not in columns:
        raise ShardError(f"it has no column {text_field!r}; its columns are: {', '.join(columns[:20]) or 'none'}")
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise ShardError(f"it has more than one column {min(twice)!r}")
