"""Chunks are complete when all is read and all has ended."""

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rollout.engine.chunk_tracker import ChunkTracker
from airflow_provider_rollout.engine.document import Document, NumberedDocument, Position


def numbered(number, size):
    return NumberedDocument(Document("", str(number)), number, number // size, 0, Position(0, number + 1))


@given(st.integers(1, 7), st.integers(0, 40), st.randoms())
def test_every_chunk_is_handed_out_once_whatever_the_order(size, count, random):
    """Completion order and reading ahead do not matter."""
    tracker, pending, complete = ChunkTracker(size), [], []
    for number in range(count):
        document = numbered(number, size)
        tracker.read(document)
        pending.append(document)
        while pending and random.random() < 0.5:
            ended = pending.pop(random.randrange(len(pending)))
            complete += [chunk for chunk in [tracker.end(ended.chunk_index)] if chunk]
    complete += tracker.input_ended()
    random.shuffle(pending)
    for document in pending:
        complete += [chunk for chunk in [tracker.end(document.chunk_index)] if chunk]
    assert sorted(chunk.chunk_index for chunk in complete) == list(range(-(-count // size)))
    assert sum(chunk.read for chunk in complete) == count
    assert not tracker.open


def test_a_chunk_that_is_not_read_to_its_end_is_not_complete():
    """Two of three documents have been read and have ended."""
    tracker = ChunkTracker(3)
    for number in (0, 1):
        tracker.read(numbered(number, 3))
    assert tracker.end(0) is None
    assert tracker.end(0) is None
    (chunk,) = tracker.input_ended()
    assert (chunk.first_number, chunk.read, chunk.end) == (0, 2, Position(0, 2))
