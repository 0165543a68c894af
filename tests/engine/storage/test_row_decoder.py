"""The row decoder: what becomes of the fields of a row, and what is no document."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from shards import ODD_TEXT, jsonl, read, read_one

from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.document import Document, Media
from airflow_provider_rollout.engine.exceptions import BadRowError
from airflow_provider_rollout.engine.storage.input_plan import make_plan
from airflow_provider_rollout.engine.storage.output import JsonlWriter, OutputRow, ParquetWriter


async def test_a_row_becomes_a_document(tmp_path: Path) -> None:
    """Text, id and media have their places; all else is metadata."""
    row = {
        "id": 7,
        "text": "t",
        "url": "u",
        "n": None,
        "deep": {"a": [1]},
        "media": [{"id": "m", "type": "image", "x": 1}],
    }
    [numbered] = await read_one(tmp_path, "a.jsonl", jsonl(row))
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
    file.write_bytes(jsonl({"prompt": "p", "key": "k", "text": 1, "id": 2}))
    plan = await make_plan([str(file)], 1)
    [numbered] = read(plan, reader=ReaderConfig(text_field="prompt", id_field="key"))
    assert numbered.document == Document(text="p", id="k", metadata={"text": 1, "id": 2})


async def test_rows_without_an_id_get_the_hash_of_their_content(tmp_path: Path) -> None:
    """Equal content, equal id; the occurrence tells them apart."""
    first, again, other = await read_one(
        tmp_path, "a.jsonl", jsonl({"text": "x"}, {"text": "x", "id": None}, {"text": "x", "n": 1, "id": ""})
    )
    assert first.document.id == again.document.id != other.document.id
    assert [first.key, again.key] == [first.document.id, f"{first.document.id}#1"]
    assert len(first.document.id) == 32


async def test_numbers_that_strict_json_lacks_are_kept(tmp_path: Path) -> None:
    """NaN, infinities and integers of 70 bits, as values and as id."""
    line = b'{"id": 1180591620717411303424, "text": "t", "nan": NaN, "inf": -Infinity, "big": 1180591620717411303425}\n'
    [numbered] = await read_one(tmp_path, "a.jsonl", line)
    assert numbered.document.id == "1180591620717411303424"
    assert math.isnan(numbered.document.metadata["nan"])
    assert numbered.document.metadata["inf"] == -math.inf
    assert numbered.document.metadata["big"] == 2**70 + 1


async def test_a_lone_surrogate_becomes_a_replacement_character(tmp_path: Path) -> None:
    """In text, id, names and values; a pair stays what it is."""
    line = rb'{"id": "i\ud83d", "text": "t\ude00 \ud83d\ude00", "m\ud800": ["\udfff"]}' + b"\n"
    [numbered] = await read_one(tmp_path, "a.jsonl", line)
    assert numbered.document == Document(text="t\ufffd \U0001f600", id="i\ufffd", metadata={"m\ufffd": ["\ufffd"]})


@pytest.mark.parametrize("writer", [ParquetWriter("x"), JsonlWriter("x"), JsonlWriter("x", compression="zstd")])
async def test_our_own_output_can_be_input(tmp_path: Path, writer: ParquetWriter | JsonlWriter) -> None:
    """Metadata and media come back as they went, bytes included."""
    media = [Media(id="m", type="image", url="u", media_bytes=b"\xff\x00", alt="a", metadata={"k": 1})]
    metadata = {"n": 1, "deep": {"x": [None]}}
    row = OutputRow("i", ODD_TEXT, metadata, media, [{"text": "answer"}])
    [numbered] = await read_one(tmp_path, f"a.{writer.extension}", writer.encode([row]))
    document = numbered.document
    assert (document.id, document.text, document.media) == ("i", ODD_TEXT, media)
    results = document.metadata.pop("rollout_results")
    assert document.metadata == metadata
    assert results in ([{"text": "answer"}], ['{"text":"answer"}'])


async def test_datatrove_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """Its metadata is the metadata; a metadata that is no object is a field like any other."""
    documents = await read_one(
        tmp_path,
        "a.jsonl",
        jsonl(
            {"text": "a", "id": "1", "metadata": {"k": 1, "j": 2}, "j": 3}, {"text": "b", "id": "2", "metadata": [1]}
        ),
    )
    assert [d.document.metadata for d in documents] == [{"k": 1, "j": 3}, {"metadata": [1]}]
    assert [d.document.media for d in documents] == [[], []]


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
        await read_one(tmp_path, "a.jsonl", b'{"text":"good"}\n\n' + line + b"\n")
    assert f"{tmp_path}/a.jsonl: line 3 " in str(caught.value)
    assert reason in str(caught.value)
    assert 'on_bad_row="skip"' in str(caught.value)
