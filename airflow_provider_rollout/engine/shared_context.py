"""What all rollouts of a job share: a client, a tokenizer, a pool; opened once and closed once.

Receives: nothing, a dict, a context manager (async or not), or a callable that returns one of these, awaited if need be.
Hands on: the keyword arguments of every rollout.
Invariant: whoever opens, closes: what the user gave as a context manager is left when the job ends, however it ends.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any

from airflow_provider_rollout.engine.exceptions import ConfigError

__all__ = ["open_shared_context"]


@asynccontextmanager
async def open_shared_context(given: Any) -> AsyncIterator[Mapping[str, Any]]:
    """Open a shared context.

    Raises:
        ConfigError: it is none of the forms above, or does not yield a dict.
    """
    if isinstance(given, AbstractAsyncContextManager):
        async with given as value:
            yield _checked(value)
    elif isinstance(given, AbstractContextManager):
        with given as value:
            yield _checked(value)
    elif callable(given):
        made = given()
        async with open_shared_context(await made if inspect.isawaitable(made) else made) as value:
            yield value
    else:
        yield _checked(given)


def _checked(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return value
    raise ConfigError(
        f"shared_context gave {type(value).__name__}; it must give a dict, whose entries become keyword arguments of the rollout function"
    )
