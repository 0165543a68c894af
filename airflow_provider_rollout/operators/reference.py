"""A function of the DAG's author becomes a reference that the job can load.

Receives: a function object, at parse time.        Hands on: ``package.module:name`` or ``/path/file.py:name``.
Invariant: what the job could not find again (lambdas, nested functions, bound methods, partials) is refused here, when the DAG is parsed,
with the reason. The function is never called and never pickled.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from airflow_provider_rollout.engine.exceptions import ConfigError

__all__ = ["as_reference", "reference_of"]

_WHY = "the job runs in a process of its own and loads the function by its name"


def reference_of(function: Callable[..., Any]) -> str:
    """How the job finds a rollout function.

    Raises:
        ConfigError: it cannot be found by name, is not async, or does not take a document and generate.
    """
    inner = _undecorated(function)
    name = inner.__qualname__
    if inner.__name__ == "<lambda>":
        raise ConfigError(
            f"rollout: a lambda has no name, and {_WHY}; write `async def name(document, generate)` at module level"
        )
    if "<locals>" in name:
        raise ConfigError(
            f"rollout: {name.replace('.<locals>', '')} is defined inside a function, and {_WHY}; move it to module level and give what "
            "it needs as rollout_kwargs"
        )
    if not inspect.iscoroutinefunction(inner):
        raise ConfigError(
            f"rollout: {name} is not async; write `async def {name}(document, generate, ...)` and `await generate(payload)`"
        )
    _check_signature(inner, name)
    return f"{_place(inner)}:{name}"


def as_reference(rollout: Callable[..., Any] | str | None) -> str | None:
    """A function's reference; what is a reference already, or nothing, stays.

    Raises:
        ConfigError: see ``reference_of``.
    """
    return reference_of(rollout) if callable(rollout) else rollout


def _undecorated(function: Any) -> Any:
    if isinstance(function, partial):
        raise ConfigError(f"rollout: a functools.partial has no name, and {_WHY}; give its arguments as rollout_kwargs")
    if inspect.ismethod(function):
        raise ConfigError(
            f"rollout: {function.__qualname__} is bound to an object, and {_WHY}; make it a function of its module"
        )
    inner = inspect.unwrap(function)
    if not inspect.isfunction(inner):
        raise ConfigError(
            f"rollout: expected an async function or a reference like 'package.module:function', got {type(function).__name__}"
        )
    return inner


def _check_signature(function: Any, name: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [item for item in parameters if item.kind in {item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD}]
    if len(positional) < 2 and not any(item.kind is item.VAR_POSITIONAL for item in parameters):  # noqa: PLR2004 - see the message
        raise ConfigError(
            f"rollout: {name} must take a document and generate: `async def {name}(document, generate, ...)`"
        )


def _place(function: Any) -> str:
    """The module, if an import finds the same file under its name; else the file. Airflow loads DAG files under made up names."""
    source = Path(inspect.getsourcefile(function) or function.__code__.co_filename).resolve()
    module = function.__module__
    if module != "__main__" and _file_of(module) == source:
        return str(module)
    if source.is_file():
        return str(source)
    raise ConfigError(
        f"rollout: {function.__qualname__} comes from {source}, which is no file, and {_WHY}; put it into a module"
    )


def _file_of(module: str) -> Path | None:
    """Where an import would find a module; imports nothing."""
    path: Any = [entry for entry in sys.path if entry]  # the job runs in another folder
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None
