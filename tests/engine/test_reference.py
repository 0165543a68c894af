"""Naming the user's code."""

import pytest

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.reference import check_rollout, load_reference, rollout_identity


async def rollout(document, generate):
    return document, generate


def not_async(document, generate):
    return document, generate


def test_a_function_in_a_file_is_found(tmp_path):
    """A DAG folder is no package."""
    (tmp_path / "sibling.py").write_text("WORD = 'hi'\n")
    (tmp_path / "mine.py").write_text(
        "from sibling import WORD\nasync def score(document, generate):\n    return WORD\n"
    )
    assert load_reference(f"{tmp_path}/mine.py:score").__name__ == "score"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", "No module named"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "has no 'score'"),
    ],
)
def test_what_goes_wrong_while_loading_is_named(tmp_path, text, message):
    """One error that names the reference and the cause."""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_reference(f"{tmp_path}/mine.py:score")


def test_a_function_that_is_not_async_is_refused():
    """The message shows how to write it."""
    assert check_rollout(rollout, "m:rollout") is rollout
    with pytest.raises(ConfigError, match="async def not_async"):
        check_rollout(not_async, "m:not_async")


def test_the_identity_follows_source_and_version():
    """A changed function is other work."""

    async def other(document, generate):
        return document, generate, 1

    before = rollout_identity(other)
    other.version = "2"
    assert before["source"] != rollout_identity(rollout)["source"]
    assert rollout_identity(other) == {**before, "version": "2"}
