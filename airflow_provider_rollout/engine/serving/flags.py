"""``model_kwargs`` become flags of a command line. Pure.

Receives: a dict with the names of flags, in snake or kebab case.        Hands on: arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.exceptions import ConfigError

__all__ = ["merge_flags", "to_flags"]


def flag_name(name: str) -> str:
    """``max_num_seqs`` and ``--max-num-seqs`` are one flag."""
    return name.lstrip("-").replace("_", "-")


def merge_flags(
    ours: Mapping[str, Any], theirs: Mapping[str, Any] | None, *, reserved: frozenset[str]
) -> dict[str, Any]:
    """Our flags and those of ``model_kwargs``, which win.

    Raises:
        ConfigError: ``model_kwargs`` sets one that is reserved.
    """
    merged = {flag_name(name): value for name, value in ours.items()}
    for name, value in (theirs or {}).items():
        flag = flag_name(name)
        if flag in reserved:
            raise ConfigError(f"InferenceConfig.model_kwargs: {name!r} is set by the engine itself; remove it")
        merged[flag] = value
    return merged


def to_flags(values: Mapping[str, Any], *, has_negatives: bool) -> list[str]:
    """Arguments for a command line.

    True is a bare flag; False is ``--no-flag`` where the program has such, or else nothing; None is nothing; a list is several values;
    a dict is JSON.
    """
    arguments: list[str] = []
    for name, value in values.items():
        flag = f"--{name}" if len(name) > 1 else f"-{name}"
        if value is None or (value is False and not has_negatives):
            continue
        if value is False:
            arguments.append(f"--no-{name}")
        elif value is True:
            arguments.append(flag)
        elif isinstance(value, (list, tuple)):
            arguments += [flag, *map(_word, value)]
        else:
            arguments += [flag, _word(value)]
    return arguments


def _word(value: Any) -> str:
    return strict_json.dumps(value).decode() if isinstance(value, (Mapping, list, tuple, bool)) else str(value)
