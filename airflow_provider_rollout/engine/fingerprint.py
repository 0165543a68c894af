"""The identity of "the same work". Pure.

Receives: the parts of a job that change its answers.        Hands on: JobRecord, which the first attempt stores and later ones compare.
Invariant: what changes the answers is in: input plan, model, generation parameters, rollout (name, source, version), its arguments,
rollouts and records per chunk, output format. What only changes how fast or where they are made stays out: timeouts, concurrency,
tp/dp/pp, retries, ports, paths, keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_provider_rollout.engine import strict_json
from airflow_provider_rollout.engine.config import InferenceConfig

__all__ = ["JobRecord", "changed_keys", "config_parts", "make_job_record"]

# Server flags under which the same prompt gives another answer; memory, parallelism and scheduling flags do not.
_ANSWER_FLAGS = frozenset(
    {"revision", "quantization", "dtype", "tokenizer", "tokenizer_revision", "chat_template", "kv_cache_dtype", "seed", "lora_modules",
     "generation_config", "reasoning_parser", "hf_overrides", "rope_scaling"}
)  # fmt: skip


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``job.json`` holds.

    Attributes:
        fingerprint: hash of ``parts``.
        parts: hash of each part by name, to name what changed.
    """

    fingerprint: str
    parts: dict[str, str]
    schema_version: int = 1


def config_parts(config: InferenceConfig) -> dict[str, Any]:
    """The parts that come from the configuration."""
    flags = {name: value for name, value in (config.model_kwargs or {}).items() if name in _ANSWER_FLAGS}
    return {
        "model_name_or_path": config.model_name_or_path,
        "use_chat": config.use_chat,
        "default_generation_params": config.default_generation_params,
        "rollouts_per_document": config.rollouts_per_document,
        "on_truncated": config.on_truncated,
        **{f"model_kwargs.{name}": value for name, value in flags.items()},
    }


def make_job_record(parts: Mapping[str, Any]) -> JobRecord:
    """Hash the parts."""
    hashes = {name: _digest(value)[:16] for name, value in sorted(parts.items())}
    return JobRecord(fingerprint=_digest(hashes), parts=hashes)


def changed_keys(stored: JobRecord, now: JobRecord) -> list[str]:
    """Names of the parts that differ."""
    return sorted(name for name in {*stored.parts, *now.parts} if stored.parts.get(name) != now.parts.get(name))


def _digest(value: Any) -> str:
    return hashlib.sha256(strict_json.dumps(value, sort_keys=True)).hexdigest()
