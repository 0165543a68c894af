"""Segments survive whole or are told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rollout.engine.storage import segment
from airflow_provider_rollout.engine.storage.segment import Row

ROWS = st.lists(st.builds(Row, st.integers(0, 9), st.integers(-1, 99), st.binary(max_size=40), st.binary(max_size=200)))


@given(ROWS)
def test_rows_come_back_as_they_went_in(rows):
    """Encoding loses nothing."""
    assert segment.decode(segment.encode(rows, "f"), "f") == rows


@given(ROWS, st.data())
def test_a_torn_segment_is_never_misread(rows, data):
    """Every cut is noticed."""
    whole = segment.encode(rows, "f")
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(segment.SegmentError):
        segment.decode(whole[:cut], "f")


def test_a_segment_of_another_configuration_is_refused():
    """Foreign answers are never replayed."""
    with pytest.raises(segment.SegmentError, match="another configuration"):
        segment.decode(segment.encode([Row(0, -1, b"k", b"v")], "theirs"), "ours")
