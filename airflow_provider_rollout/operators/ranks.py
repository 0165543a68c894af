"""How many mapped tasks a dataset is worth.

Receives: the source, and bounds.        Hands on: one dict for each mapped task, for ``InferenceOperator.partial(…).expand_kwargs(…)``.
Invariants: never more than ``max_ranks``, however large the data; every rank has something to read. A run that has begun keeps its number
of ranks, so that clearing the planning task does not change what its mapped tasks mean.

::

    @task
    def plan():
        return plan_ranks("s3://corpus/*.jsonl", "s3://corpus/answers", max_ranks=8)

    InferenceOperator.partial(task_id="ask", source=…, output=…, config=…).expand_kwargs(plan())
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from airflow_provider_rollout.engine.exceptions import ConfigError, InputError, ObjectNotFoundError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.exceptions import RolloutConfigError
from airflow_provider_rollout.hooks.store import open_store, store_options
from airflow_provider_rollout.operators.parameters import absolute

if TYPE_CHECKING:
    from airflow_provider_rollout.engine.storage.input_plan import InputPlan

__all__ = ["plan_ranks"]

_MIB = 2**20


def plan_ranks(
    source: str | list[str],
    output: str,
    *,
    max_ranks: int,
    bytes_per_rank: int = 256 * _MIB,
    checkpoints: str | None = None,
    aws_conn_id: str | None = "aws_default",
) -> list[dict[str, int]]:
    """Ranks for a dataset: one for each ``bytes_per_rank``, at least one and at most ``max_ranks``. Call it in a task.

    Args:
        source: as the operator's.
        output: as the operator's; a run that has begun there is looked at.
        max_ranks: the most mapped tasks, for instance the number of GPUs; Airflow's own bound is ``[core] max_map_length``.
        bytes_per_rank: how much of the stored data one rank should read.
        checkpoints: as the operator's.
        aws_conn_id: as the operator's.

    Returns:
        ``[{"rank": 0, "world_size": N}, …]``

    Raises:
        RolloutConfigError: a bound is wrong, or the source names nothing.
        RolloutError: a store cannot be read.
    """
    sources = [absolute(uri) for uri in ([source] if isinstance(source, str) else source)]
    state = absolute(checkpoints) if checkpoints else f"{absolute(output).rstrip('/')}/_rollout"
    try:
        if min(max_ranks, bytes_per_rank) < 1:
            raise ConfigError(
                f"max_ranks={max_ranks}, bytes_per_rank={bytes_per_rank}: both must be 1 at least; correct plan_ranks()"
            )
        count = asyncio.run(_count(sources, state, max_ranks, bytes_per_rank, aws_conn_id))
    except InputError as error:
        raise RolloutConfigError(str(error)) from error
    return [{"rank": rank, "world_size": count} for rank in range(count)]


async def _count(
    sources: list[str], checkpoints: str, max_ranks: int, bytes_per_rank: int, aws_conn_id: str | None
) -> int:
    from airflow_provider_rollout.engine.storage.input_plan import make_plan  # noqa: PLC0415 - not where a DAG is parsed

    pinned = await _pinned(checkpoints, aws_conn_id)
    if pinned is not None:
        return pinned.world_size
    options = await asyncio.to_thread(store_options, sources, aws_conn_id)
    whole = await make_plan(sources, 1, options)
    size_bytes = sum(shard.size_bytes for shard in whole.shards)
    wanted = max(1, min(max_ranks, -(-size_bytes // bytes_per_rank)))
    # Compressed files are not split, so that there may be fewer parts than ranks.
    return max(1, min(wanted, len((await make_plan(sources, wanted, options)).parts)))


async def _pinned(checkpoints: str, aws_conn_id: str | None) -> InputPlan | None:
    from airflow_provider_rollout.engine.storage.input_plan import InputPlan  # noqa: PLC0415 - not where a DAG is parsed

    store = await asyncio.to_thread(open_store, checkpoints, aws_conn_id)
    try:
        return msgspec.json.decode(await store.get(layout.PLAN), type=InputPlan)
    except ObjectNotFoundError:
        return None
