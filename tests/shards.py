"""Shards for tests: how to make them and how to read them in one go."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import NumberedDocument
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, make_plan
from airflow_provider_rollout.engine.storage.shard_reader import read_documents

SKIP = ReaderConfig(on_bad_row="skip")


ODD_TEXT = "a\u2028b\u2029c\u0085d\x1ce\x1df\x0bg\x0ch\ri"


def read(
    plan: InputPlan, rank: int = 0, reader: ReaderConfig | None = None, per_chunk: int = 1000, **more: Any
) -> list[NumberedDocument]:
    """The documents of a rank."""
    return list(read_documents(plan, rank, reader or ReaderConfig(), per_chunk, **more))


def texts(documents: Iterable[NumberedDocument]) -> list[str]:
    """Their texts."""
    return [numbered.document.text for numbered in documents]


async def read_one(
    tmp_path: Path, name: str, data: bytes, reader: ReaderConfig | None = None
) -> list[NumberedDocument]:
    """The documents of a file with these bytes."""
    file = tmp_path / name
    file.write_bytes(data)
    return read(await make_plan([str(file)], 1), reader=reader)


def jsonl(*rows: Any) -> bytes:
    """One line for each row."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def shard_bytes(name: str, rows: list[dict[str, Any]]) -> bytes:
    """The rows in the format that the name tells; compressed in two members."""
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
        data = jsonl(*rows)
    if name.endswith(".gz"):
        half = len(data) // 2
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if name.endswith(".zst"):
        half = len(data) // 2
        return zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    return data
