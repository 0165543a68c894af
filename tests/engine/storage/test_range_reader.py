"""A file over ranges reads like a file."""

import io

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rollout.engine.storage.range_reader import RangeReader

STEPS = st.lists(
    st.tuples(st.just("seek"), st.integers(-50, 250), st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]))
    | st.tuples(st.just("read"), st.integers(0, 80), st.just(0)),
    max_size=12,
)


@given(st.binary(max_size=200), STEPS)
def test_it_reads_and_seeks_as_a_file_in_memory_does(data, steps):
    """Also beyond the end."""
    file, reader = io.BytesIO(data), RangeReader(len(data), lambda start, end: data[start:end])
    for what, number, whence in steps:
        if what == "read":
            assert reader.read(number) == file.read(number)
            continue
        expected = {io.SEEK_SET: 0, io.SEEK_CUR: file.tell(), io.SEEK_END: len(data)}[whence] + number
        assert reader.seek(number, whence) == file.seek(max(0, expected))
    assert reader.tell() == file.tell()
