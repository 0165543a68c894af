"""The user's code, named by a reference.

Receives: ``package.module:name`` or ``/path/file.py:name``.        Hands on: the object, and for a rollout function its identity.
Invariant: whatever goes wrong while the user's module loads is a ConfigError that names the reference.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.result import Rollout

__all__ = ["check_rollout", "load_reference", "rollout_identity"]


def load_reference(reference: str) -> Any:
    """Load ``package.module:name`` or ``/path/file.py:name``.

    Raises:
        ConfigError: the module does not import or has no such name.
    """
    module_name, _, name = reference.rpartition(":")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{reference!r} does not import: {type(error).__name__}: {error}; the module must be on the job's PYTHONPATH, or be given "
            "as /path/file.py:name"
        ) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{reference!r}: {module_name} has no {name!r}")
        found = getattr(found, part)
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    name = f"rollout_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def rollout_identity(rollout: Callable[..., Any]) -> dict[str, str]:
    """Name, source hash and version of a rollout function: what a fingerprint needs to know of it.

    The version is the function's attribute ``version``, for changes that its own source does not show.
    """
    inner = inspect.unwrap(rollout)
    target = inner if hasattr(inner, "__qualname__") else type(inner)
    try:
        source = inspect.getsource(cast("Any", target))
    except (OSError, TypeError):
        source = ""
    return {
        "name": str(getattr(target, "__qualname__", target)),
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "version": str(getattr(rollout, "version", "")),
    }


def check_rollout(rollout: Any, reference: str) -> Rollout:
    """The rollout function itself: what a decorator wrapped, if it wrapped one.

    Raises:
        ConfigError: it is not an async callable.
    """
    for candidate in (rollout, getattr(rollout, "__wrapped__", None), getattr(rollout, "function", None)):
        call = candidate if inspect.isroutine(candidate) else getattr(candidate, "__call__", None)  # noqa: B004
        if call is not None and inspect.iscoroutinefunction(inspect.unwrap(call)):
            return cast("Rollout", candidate)
    name = reference.rpartition(":")[2]
    raise ConfigError(f"{reference} is not an async function; write 'async def {name}(document, generate): ...'")
