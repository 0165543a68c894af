"""The rollout engine: reads documents, asks a model, writes results, resumes. Imports no Airflow.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rollout.engine.config import FailureBudget, InferenceConfig, JobSpec, ReaderConfig
    from airflow_provider_rollout.engine.document import Document, Media
    from airflow_provider_rollout.engine.exceptions import BadRequestError, InferenceError, RolloutError
    from airflow_provider_rollout.engine.result import InferenceResult
    from airflow_provider_rollout.engine.runner import InferenceRunner
    from airflow_provider_rollout.engine.storage.output import JsonlWriter, ParquetWriter

_ROOMS = {
    "BadRequestError": "exceptions",
    "Document": "document",
    "FailureBudget": "config",
    "InferenceConfig": "config",
    "InferenceError": "exceptions",
    "InferenceResult": "result",
    "InferenceRunner": "runner",
    "JobSpec": "config",
    "JsonlWriter": "storage.output",
    "Media": "document",
    "ParquetWriter": "storage.output",
    "ReaderConfig": "config",
    "RolloutError": "exceptions",
}

__all__ = [
    "BadRequestError",
    "Document",
    "FailureBudget",
    "InferenceConfig",
    "InferenceError",
    "InferenceResult",
    "InferenceRunner",
    "JobSpec",
    "JsonlWriter",
    "Media",
    "ParquetWriter",
    "ReaderConfig",
    "RolloutError",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
