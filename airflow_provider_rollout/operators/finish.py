"""How a job's end becomes a task's: a small result, or an exception that says whether a retry helps.

Receives: the watcher's event, and the rank's manifest.        Hands on: the XCom dict (below 4 KiB, whatever the size of the run).
Invariants: the only place where the engine's failures turn into Airflow's. What cannot succeed at the second try is not retried; that is
decided by exit code and class name, never by text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Context

from airflow_provider_rollout.engine.exceptions import EXIT_BAD_ARGUMENTS, RolloutError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.exceptions import (
    RolloutCancelled,
    RolloutConfigError,
    RolloutFailed,
    RolloutJobLost,
    RolloutTimeout,
)
from airflow_provider_rollout.hooks.store import open_store
from airflow_provider_rollout.hooks.watch import Job

if TYPE_CHECKING:
    from airflow_provider_rollout.engine.storage.manifest import RankManifest

__all__ = ["announce", "check_event", "is_to_be_resumed", "read_result", "summary"]

_NO_RETRY = frozenset({"InputError", "ConfigError", "ShardError", "BadRowError", "FingerprintMismatchError"})
_NO_VERDICT = frozenset({"lost", "interrupted", "cancelled"})
_MAX_CAUSES = 5
_MAX_TEXT = 200
_OWN_END = {
    "failed": RolloutFailed,
    "cancelled": RolloutCancelled,
    "interrupted": RolloutJobLost,
    "lost": RolloutJobLost,
    "timeout": RolloutTimeout,
    "error": RolloutJobLost,
}


def check_event(event: Any) -> Mapping[str, Any]:
    """Let a success pass.

    Raises:
        AirflowException: the job did not succeed; the class says how.
    """
    if not isinstance(event, Mapping) or "status" not in event or "job" not in event:
        raise RolloutFailed(
            f"the trigger sent no event of a rollout job but {type(event).__name__}; clear the task to look again"
        )
    status = event["status"]
    if status == "succeeded":
        return event
    kind = _OWN_END.get(status, RolloutFailed)
    if event.get("error_class") in _NO_RETRY or event.get("exit_code") == EXIT_BAD_ARGUMENTS:
        kind = RolloutConfigError
    raise kind(_message(event))


def is_to_be_resumed(event: Any) -> bool:
    """Whether the job of an earlier try ended under the watch of this one, without having failed.

    Clearing a deferred task cancels its job while the new try already watches it. That must not cost the new try.
    """
    return isinstance(event, Mapping) and event.get("status") in _NO_VERDICT and bool(event["job"].get("reattached"))


def read_result(job: Job, aws_conn_id: str | None) -> RankManifest:
    """The manifest of the rank.

    Raises:
        RolloutJobLost: it cannot be read now.
        RolloutFailed: it does not exist.
    """
    from airflow_provider_rollout.engine.storage.manifest import read_rank_manifest  # noqa: PLC0415 - not where a DAG is parsed

    try:
        manifest = asyncio.run(read_rank_manifest(open_store(job.checkpoints, aws_conn_id), job.rank))
    except RolloutError as error:
        raise RolloutJobLost(f"job {job.job_id} succeeded, but its manifest cannot be read: {error}") from error
    if manifest is None:
        raise RolloutFailed(
            f"job {job.job_id} succeeded, but {job.checkpoints}/{layout.rank_manifest(job.rank)} is gone; was the state removed meanwhile?"
        )
    return manifest


def summary(job: Job, manifest: RankManifest, *, resumed: int) -> dict[str, Any]:
    """What downstream tasks and people get."""
    causes = sorted(manifest.top_causes.items(), key=lambda item: -item[1])[:_MAX_CAUSES]
    return {
        "manifest_uri": f"{job.checkpoints}/{layout.rank_manifest(job.rank)}",
        "output": manifest.output,
        "rank": manifest.rank,
        "world_size": manifest.world_size,
        "documents_in": manifest.documents_in,
        "documents_written": manifest.documents_written,
        "documents_failed": manifest.documents_failed,
        "documents_dropped": manifest.documents_dropped,
        "rollouts": manifest.rollouts_written,
        "requests_sent": manifest.requests_sent,
        "cache_hits": manifest.cache_hits,
        "prompt_tokens": manifest.prompt_tokens,
        "completion_tokens": manifest.completion_tokens,
        "fingerprint": manifest.fingerprint,
        "resumed": resumed,
        "top_causes": {cause[:_MAX_TEXT]: count for cause, count in causes},
    }


def announce(context: Context, outlets: Iterable[Any], result: Mapping[str, Any]) -> None:
    """Tell the consumers of the task's assets what is new in them."""
    extra = {
        "rows": result["documents_written"],
        "manifest": result["manifest_uri"],
        "fingerprint": result["fingerprint"],
    }
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(extra)


def _message(event: Mapping[str, Any]) -> str:
    job, code = event["job"], event.get("exit_code")
    parts = [f"job {job['job_id']} of rank {job['rank']} {event['status']}: {event.get('reason', '')}"]
    if code is not None:
        parts.append(f"exit code {code}")
    if event.get("log_tail"):
        parts.append(f"the end of its log:\n{event['log_tail']}")
    return "; ".join(parts)
