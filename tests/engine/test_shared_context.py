"""Whoever opens, closes."""

from contextlib import asynccontextmanager, contextmanager

import pytest

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.shared_context import open_shared_context

closed = []


@contextmanager
def plain():
    yield {"a": 1}
    closed.append("plain")


@asynccontextmanager
async def asynchronous():
    yield {"a": 1}
    closed.append("asynchronous")


async def coroutine():
    return {"a": 1}


@pytest.mark.parametrize(
    "given",
    [{"a": 1}, lambda: {"a": 1}, plain, asynchronous, coroutine],
    ids=["dict", "callable", "context manager", "async context manager", "coroutine function"],
)
async def test_every_form_gives_the_keyword_arguments(given):
    """Dict, callable, context manager, async context manager."""
    async with open_shared_context(given) as value:
        assert value == {"a": 1}


async def test_none_gives_nothing():
    """No context is an empty one."""
    async with open_shared_context(None) as value:
        assert value == {}


async def test_context_managers_are_left():
    """Also when the block is left by an error."""
    closed.clear()
    async with open_shared_context(plain), open_shared_context(asynchronous()):
        assert closed == []
    assert closed == ["asynchronous", "plain"]


@pytest.mark.parametrize("given", [3, {1: 2}, lambda: "text"])
async def test_anything_else_is_refused(given):
    """The error says what was given."""
    with pytest.raises(ConfigError, match="it must give a dict"):
        async with open_shared_context(given):
            raise AssertionError("opened")
