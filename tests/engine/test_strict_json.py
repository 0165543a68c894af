"""Strict JSON: every value that a rollout may return becomes bytes that every reader takes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import subprocess
import sys
import types
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_rollout.engine import strict_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
# Also what JSON does not have: surrogates, huge integers, NaN, bytes, sets, keys that are no strings.
ANY_TEXT = st.text(st.characters(codec=None), max_size=6)
ANY_VALUES = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=4)
    | st.frozensets(st.integers(0, 9), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(ANY_TEXT | st.integers(-(2**70), 2**70), inner, max_size=3)
    ),
    max_leaves=8,
)


class Record(msgspec.Struct):
    name: str
    values: list[Any]


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


def _strict(data: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


@settings(max_examples=60)
@given(JSON_VALUES)
def test_json_values_come_back_as_they_went(value: Any) -> None:
    """Strict values are not changed."""
    assert strict_json.loads(strict_json.dumps(value)) == value


@settings(max_examples=150)
@given(ANY_VALUES)
def test_any_value_becomes_strict_json(value: Any) -> None:
    """UTF-8, no NaN, readable by a strict reader; and encoding what was read changes nothing more."""
    data = strict_json.dumps(value)
    assert strict_json.dumps(_strict(data)) == data
    assert _strict(strict_json.dumps(value, sort_keys=True)) == _strict(data)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=5), st.randoms())
def test_sorted_keys_make_equal_values_equal_bytes(value: dict[str, Any], random: Any) -> None:
    """Whatever the order in which a dict was filled."""
    items = list(value.items())
    random.shuffle(items)
    assert strict_json.dumps(dict(items), sort_keys=True) == strict_json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "null"),
        ([float("inf"), -float("inf")], "[null,null]"),
        ("a\ud83db", '"a\ufffdb"'),
        ("\ud83d\ude00", '"\U0001f600"'),
        ({"\ude00": "\ud83d"}, '{"\ufffd":"\ufffd"}'),
        (2**64 - 1, "18446744073709551615"),
        (2**64, '"18446744073709551616"'),
        (-(2**63), "-9223372036854775808"),
        (-(2**63) - 1, '"-9223372036854775809"'),
        ([{"deep": {"n": 10**30}}], '[{"deep":{"n":"1000000000000000000000000000000"}}]'),
        (b"\xff\x00", '"/wA="'),
        (bytearray(b"a"), '"YQ=="'),
        (memoryview(b"a"), '"YQ=="'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({1: "a", None: "b", False: "c", 1.5: "d"}, '{"1":"a","null":"b","false":"c","1.5":"d"}'),
        ((1, (2,)), "[1,[2]]"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), '"2026-01-02T03:04:05+00:00"'),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (Record("r", [1, b"a"]), '{"name":"r","values":[1,"YQ=="]}'),
        (Point(1, Point("\ud83d")), '{"x":1,"y":{"x":"\ufffd","y":null}}'),
        ("\u2028\u0085\x1c", '"\u2028\u0085\\u001c"'),
    ],
)
def test_what_json_lacks_has_a_form(value: Any, text: str) -> None:
    """Each kind of value, on the fast way and beside a value that needs the slow one."""
    assert strict_json.dumps(value).decode() == text
    assert strict_json.dumps([value, 2**80]).decode() == f'[{text},"{2**80}"]'


@pytest.mark.parametrize(
    ("value", "name"),
    [(object(), "object"), ([object()], "object"), ({"a": len}, "builtin"), (1j, "complex"), ([2**80, 1j], "complex")],
)
def test_other_objects_are_refused_by_name(value: Any, name: str) -> None:
    """The message names the type."""
    with pytest.raises(TypeError, match=name):
        strict_json.dumps(value)


@pytest.mark.parametrize("data", [b"NaN", b"{", b"", b'"\xff"', "\ud83d", b"[1,]"])
def test_what_is_not_json_is_refused(data: bytes | str) -> None:
    """As a ValueError, whatever is wrong."""
    with pytest.raises(ValueError):  # noqa: PT011 (each has a message of its own)
        strict_json.loads(data)


def test_integers_of_any_size_are_read_exactly() -> None:
    """A float would lose digits."""
    assert strict_json.loads(b"[1180591620717411303424]") == [2**70]


def test_a_refused_object_is_told_what_to_do() -> None:
    """The message is ours, and not the codec's."""
    with pytest.raises(TypeError, match=r"builtins\.object has no JSON form; return text"):
        strict_json.dumps({"a": [object()]})


def test_equal_values_give_equal_bytes_in_every_process() -> None:
    """The request cache looks for the hash of an earlier process: sets and strings must not depend on its hash seed."""
    code = (
        "from airflow_provider_rollout.engine import strict_json;"
        "print(strict_json.dumps({'b': {'x', 'y', 'z', 'w'}, 'a': frozenset('hello'), 'n': 2**70}, sort_keys=True))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
