"""Rules of the tree of errors."""

import re

import pytest

from airflow_provider_rollout.engine import exceptions
from airflow_provider_rollout.engine.exceptions import (
    AttemptActiveError,
    ConfigError,
    FencedError,
    InferenceError,
    JobCancelledError,
    JobInterruptedError,
    RolloutError,
    StoreError,
)


def classes() -> dict[str, type]:
    """Every error class that the module defines."""
    return {name: item for name, item in vars(exceptions).items() if isinstance(item, type)}


def test_the_drawing_shows_every_class_under_its_parent():
    """The docstring is the map that people read; it must not lie."""
    parents: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in (exceptions.__doc__ or "").splitlines():
        match = re.match(r"(?P<indent>[\s│├└─]*)(?P<name>[A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match["indent"])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        if stack:
            parents[match["name"]] = stack[-1][1]
        stack.append((depth, match["name"]))
    expected = {name: item.__mro__[1].__name__ for name, item in classes().items() if item is not RolloutError}
    assert parents == expected


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_error_is_a_rollout_error(name):
    """One ``except`` catches all that the engine raises on purpose."""
    assert issubclass(classes()[name], RolloutError)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (RolloutError, 1),
        (StoreError, 1),
        (ConfigError, 2),
        (FencedError, 75),
        (AttemptActiveError, 75),
        (JobInterruptedError, 143),
        (JobCancelledError, 143),
    ],
)
def test_the_exit_code_tells_a_launcher_what_to_do(error, exit_code):
    """1 failed, 2 wrong arguments, 75 somebody else is at work, 143 resumable."""
    assert error.exit_code == exit_code


def test_a_config_error_is_a_value_error_too():
    """Airflow and users expect ValueError from a wrong argument."""
    assert issubclass(ConfigError, ValueError)


def test_an_inference_error_carries_what_a_retry_needs():
    """Decisions are taken by these fields, never by the message."""
    error = InferenceError("busy", status=429, attempts=3, retry_after_s=2.5)
    assert (str(error), error.status, error.attempts, error.retry_after_s) == ("busy", 429, 3, 2.5)
