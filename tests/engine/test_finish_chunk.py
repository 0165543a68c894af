"""A chunk is written whole or not at all."""

import json

import msgspec
import pytest

from airflow_provider_rollout.engine.chunk_tracker import OpenChunk
from airflow_provider_rollout.engine.document import Position
from airflow_provider_rollout.engine.exceptions import ManifestError
from airflow_provider_rollout.engine.finish_chunk import finish_chunk
from airflow_provider_rollout.engine.result import Failure, RolloutResult
from airflow_provider_rollout.engine.rollout import FinishedDocument
from airflow_provider_rollout.engine.storage.output import JsonlWriter


def kept(number, outcome):
    failure = RolloutResult(0, failure=Failure("BadRequestError", "no", status=400, payload_sha256="ab"))
    return msgspec.json.encode(
        FinishedDocument(
            number=number,
            key=f"k{number}",
            id=f"k{number}",
            text="t",
            metadata=msgspec.Raw(b'{"a":1}'),
            media=msgspec.Raw(b"[]"),
            values=[msgspec.Raw(b'"v"')] if outcome == "written" else [],
            failures=[failure] if outcome == "failed" else [],
            outcome=outcome,
            requests=1,
            prompt_tokens=2,
            completion_tokens=3,
            end=Position(2, 100 + number),
        )
    )


def finish(chunk, documents, writer):
    return finish_chunk(chunk, documents, writer, lambda part_index: f"shard-{part_index}")


def chunk(count):
    return OpenChunk(1, 10, Position(0, 10 + count), read=count, ended=count, bad_rows=4, is_closed=True)


def test_counts_rows_and_dead_letters_agree(tmp_path):
    """One of each outcome."""
    finished = finish(chunk(3), [kept(10, "written"), kept(11, "failed"), kept(12, "dropped")], JsonlWriter(tmp_path))
    counts = finished.counts
    assert (counts.documents, counts.written, counts.failed, counts.dropped, counts.bad_rows) == (3, 1, 1, 1, 4)
    assert (counts.requests, counts.prompt_tokens, counts.causes) == (3, 6, {"BadRequestError 400": 1})
    assert json.loads(finished.output)["rollout_results"] == ["v"]
    assert json.loads(finished.dead_letters) == {
        "document_id": "k11",
        "document_key": "k11",
        "document_number": 11,
        "rollout_index": 0,
        "document_outcome": "failed",
        "shard": "shard-2",
        "shard_offset": 111,
        "cause": "BadRequestError",
        "message": "no",
        "status": 400,
        "attempts": 1,
        "permanent": True,
        "payload_sha256": "ab",
    }
    assert (finished.failed_numbers, finished.dropped) == ([11], {12: "k12"})


def test_a_chunk_without_a_written_document_has_no_output(tmp_path):
    """No empty objects."""
    finished = finish(chunk(1), [kept(10, "dropped")], JsonlWriter(tmp_path))
    assert (finished.output, finished.dead_letters) == (None, None)


@pytest.mark.parametrize("numbers", [[10, 11], [10, 12], [10, 11, 11], [11, 10, 12]])
def test_a_missing_or_doubled_document_stops_the_chunk(tmp_path, numbers):
    """Nothing that does not add up is written."""
    with pytest.raises(ManifestError, match="chunk 1 should hold documents 10 to 12"):
        finish(chunk(3), [kept(number, "written") for number in numbers], JsonlWriter(tmp_path))
