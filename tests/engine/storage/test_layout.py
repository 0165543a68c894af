"""Rules of the keys: they sort in the order of what they count, and tell their number."""

import pytest

from airflow_provider_rollout.engine.storage import layout


@pytest.mark.parametrize(
    "key",
    [
        lambda n: layout.attempt(3, n),
        lambda n: layout.segment(3, 7, n),
        lambda n: layout.chunk(3, n),
        lambda n: layout.dead_letters(3, n),
        layout.rank_manifest,
        lambda n: layout.output(3, n, "parquet"),
        lambda n: layout.output(n, 3, "jsonl.zst"),
    ],
)
def test_keys_sort_as_their_numbers(key):
    """One LIST with a start offset finds the newest attempt or the later chunks."""
    numbers = [0, 1, 9, 10, 99, 100, 9_999, 10_000]
    assert sorted(map(key, numbers)) == [key(number) for number in numbers]


@pytest.mark.parametrize("number", [0, 7, 123_456])
def test_a_key_tells_its_number(number):
    """What was written into a key is read from it."""
    keys = [layout.attempt(1, number), layout.chunk(1, number), layout.rank_manifest(number)]
    assert [layout.number(key) for key in [*keys, layout.output(1, number, "jsonl.zst")]] == [number] * 4


def test_a_key_without_a_number_is_refused():
    """A foreign object is never taken for state."""
    with pytest.raises(ValueError, match=r"plan\.json"):
        layout.number(layout.PLAN)


def test_a_prefix_holds_the_keys_of_its_rank_only():
    """A rank never lists another rank's objects."""
    assert layout.attempt(1, 2).startswith(layout.attempts(1))
    assert layout.segment(1, 2, 3).startswith(layout.cache(1))
    assert layout.chunk(1, 2).startswith(layout.chunks(1))
    assert layout.output(1, 2, "parquet").startswith(layout.output_prefix(1))
    assert layout.rank_manifest(1).startswith(layout.MANIFESTS)
    assert layout.spec("job").startswith(layout.SPECS)
    assert not layout.chunk(11, 2).startswith(layout.chunks(1))


def test_an_output_object_is_named_as_in_datatrove():
    """Readers made for datatrove's chunks find these."""
    assert layout.output(0, 3, "parquet") == "00000_chunk_00003.parquet"
