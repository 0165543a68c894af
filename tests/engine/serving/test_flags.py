"""model_kwargs on a command line."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.serving.flags import merge_flags, to_flags


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--a-flag"]),
        (False, ["--no-a-flag"]),
        (None, []),
        (256, ["--a-flag", "256"]),
        (0.9, ["--a-flag", "0.9"]),
        ("text", ["--a-flag", "text"]),
        (["x", 2], ["--a-flag", "x", "2"]),
        ({"type": "yarn", "on": True}, ["--a-flag", '{"type":"yarn","on":true}']),
        ([{"a": 1}], ["--a-flag", '{"a":1}']),
    ],
)
def test_a_value_becomes_words_by_its_type(value, words):
    """As vLLM reads them."""
    assert to_flags(merge_flags({}, {"a_flag": value}, reserved=frozenset()), has_negatives=True) == words


def test_false_is_left_out_where_a_program_has_no_negative_flags():
    """SGLang's switches can only be turned on."""
    assert to_flags({"a": False, "bc": True}, has_negatives=False) == ["--bc"]


def test_theirs_win_in_whichever_case_and_the_dict_stays():
    """``tensor_parallel_size`` and ``--tensor-parallel-size`` are one flag."""
    theirs = {"max_model_len": 5, "--dtype": "half", "q": 1}
    merged = merge_flags({"max-model-len": 9}, theirs, reserved=frozenset({"port"}))
    assert to_flags(merged, has_negatives=True) == ["--max-model-len", "5", "--dtype", "half", "-q", "1"]
    assert theirs == {"max_model_len": 5, "--dtype": "half", "q": 1}


@pytest.mark.parametrize("name", ["api_key", "--api-key", "api-key"])
def test_a_reserved_flag_is_refused_by_name(name):
    """A key on a command line can be read by every user."""
    with pytest.raises(ConfigError, match="set by the engine itself"):
        merge_flags({}, {name: "secret"}, reserved=frozenset({"api-key"}))
