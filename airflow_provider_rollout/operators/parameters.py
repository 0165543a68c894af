"""From the operator's parameters to a job spec: what can be checked when the DAG is parsed, and the rest when the task runs.

Receives: keyword arguments, of which some are known only when the task runs (templates, results of other tasks).
Hands on: a checked JobSpec.
Invariants: a parameter that is known at parse time and wrong raises ConfigError there, also in ``partial()``. An API key is taken out of
the config before Airflow stores or shows anything of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from airflow_provider_rollout.engine.config import (
    InferenceConfig,
    JobSpec,
    ReaderConfig,
    is_environment_name,
    job_spec_bytes,
)
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.operators.reference import as_reference

__all__ = [
    "SealedConfig",
    "absolute",
    "check_parameters",
    "check_partial",
    "is_late",
    "late_places",
    "spec_digest",
    "split_key",
    "with_numbers",
]

_LATE = "known when the task runs"
_TEXT_FIELDS = {
    "model_name_or_path",
    "endpoint_url",
    "server_type",
    "server_log_folder",
    "server_command",
    "server_env",
    "on_truncated",
}


class SealedConfig:
    """A config with an API key in it, for the arguments of a mapped task: those are stored, and this is stored without the key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def __repr__(self) -> str:
        return repr({**self.values, "api_key": "***"})


def check_partial(given: Mapping[str, Any]) -> None:
    """Check the arguments of ``partial()``, as far as they are known when the DAG is parsed.

    Raises:
        ConfigError: one of them is wrong.
    """
    if hasattr(given.get("output"), "iter_references"):
        raise ConfigError(
            "output: in partial() the result of another task must be given as a template, \"{{ ti.xcom_pull('task') }}\""
        )
    values = {name: value for name, value in given.items() if name in JobSpec.__struct_fields__ and value is not None}
    if isinstance(values.get("source"), str):
        values["source"] = [values["source"]]
    values["rollout"] = as_reference(values.get("rollout"))
    values["reader"] = {name: given[name] for name in ReaderConfig.__struct_fields__ if name in given}
    check_parameters(values)


def is_late(value: Any) -> bool:
    """Whether a value is a template, or the result of another task, or holds one."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_late(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_late(item) for item in value)
    return hasattr(value, "iter_references")


def check_parameters(given: Mapping[str, Any]) -> None:
    """Check what is known when the DAG is parsed.

    Args:
        given: fields of JobSpec by name; those that are missing or late are taken to be right.

    Raises:
        ConfigError: one of them is wrong.
    """
    values = {name: value for name, value in given.items() if not is_late(value)}
    for name in ("prompt_template", "system_prompt"):
        _check_template(name, given.get(name))
    if given.get("rollout") is None and given.get("prompt_template") is not None:
        values.setdefault("prompt_template", _LATE)
    values.setdefault("source", [_LATE])
    values.setdefault("output", _LATE)
    values["config"] = _checkable(given.get("config", _LATE))
    JobSpec(job_id=_LATE, **values)


def split_key(config: Any) -> tuple[Any, str | None]:
    """A config as a dict without its API key, and the key; the name of an environment variable is no key and stays.

    Raises:
        ConfigError: it is neither an InferenceConfig nor a dict.
    """
    if hasattr(config, "iter_references"):
        return config, None
    if isinstance(config, SealedConfig):
        config = config.values
    if isinstance(config, InferenceConfig):
        config = msgspec.structs.asdict(config)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config: expected an InferenceConfig or a dict of its parameters, got {type(config).__name__}"
        )
    values = dict(config)
    key = values.get("api_key")
    if not isinstance(key, str) or is_environment_name(key):
        return values, None
    del values["api_key"]
    return values, key


def late_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in nested dicts and lists the templates are."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in late_places(item, (*place, name))]
    if isinstance(value, (list, tuple)):
        return [found for index, item in enumerate(value) for found in late_places(item, (*place, index))]
    return [place] if isinstance(value, str) and is_late(value) else []


def with_numbers(config: Mapping[str, Any], places: list[tuple[Any, ...]]) -> dict[str, Any]:
    """A rendered config in which what templates gave as text is a number or a truth value again where it reads like one."""
    values = deepcopy(dict(config))
    for place in places:
        if place[0] in _TEXT_FIELDS:
            continue
        holder: Any = values
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = _number(holder[place[-1]])
    return values


def absolute(uri: str) -> str:
    """A relative path of the worker, made absolute: the job runs in another folder."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def spec_digest(spec: JobSpec) -> str:
    """Tells two specs apart, whatever their launch."""
    same = msgspec.structs.replace(spec, job_id="-", rerun_token=None)
    return hashlib.sha256(job_spec_bytes(same)).hexdigest()[:16]


def _checkable(config: Any) -> InferenceConfig:
    """A config in which what is late has some right value."""
    if isinstance(config, InferenceConfig):
        return config
    if config == _LATE or hasattr(config, "iter_references"):
        return InferenceConfig(server_type="dummy", model_name_or_path=_LATE)
    values, _ = split_key(config)
    known = InferenceConfig.__struct_fields__
    settled = {name: value for name, value in values.items() if not (name in known and is_late(value))}
    if "model_name_or_path" in values:
        settled.setdefault("model_name_or_path", _LATE)
    if is_late(values.get("server_type")):
        settled["server_type"] = "dummy"
        settled.pop("endpoint_url", None)
    if values.get("server_type") == "endpoint":
        settled.setdefault("endpoint_url", "http://connection")
    return InferenceConfig.from_dict(settled)


def _check_template(name: str, text: Any) -> None:
    """A prompt is rendered by Jinja before the job fills in the document, and JSON in a prompt easily is no Jinja."""
    if not isinstance(text, str):
        return
    try:
        jinja2.Environment(autoescape=True).parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{name}: line {error.lineno} is no Jinja template ({error.message}); write {{% raw %}}…{{% endraw %}} around braces that "
            "Airflow is to leave alone"
        ) from None


def _number(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        value = msgspec.json.decode(text.strip().lower() if text.strip() in {"True", "False"} else text)
    except msgspec.DecodeError:
        return None if text.strip() == "None" else text
    return value if value is None or isinstance(value, (bool, int, float)) else text
