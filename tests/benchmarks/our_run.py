"""Our runner as a contestant, request cache and checkpoints on: there is no way to turn them off.

Receives: the arguments of measured.py, URIs of output and state; ROLLOUT_STORE_OPTIONS for S3.
Hands on: its report, with the pauses of the event loop if asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import time
from typing import Any

from measured import contestant_parser, measured, payload_of

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, ParquetWriter

_TICK_S = 0.005


async def rollout(document: Document, generate: Any) -> Any:
    """One call per rollout."""
    return await generate(payload_of(document.text))


async def watch_pauses(pauses_s: list[float]) -> None:
    """Note by how much each short sleep is late: so long was the loop busy with something else."""
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        pauses_s.append(time.perf_counter() - due_s)


async def run(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    """Run the rank."""
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=arguments.url,
        model_name_or_path=arguments.model,
        max_concurrent_generations=arguments.in_flight,
        rollouts_per_document=arguments.rollouts,
        default_generation_params=arguments.params,
    )
    runner = InferenceRunner(
        rollout,
        config,
        ParquetWriter(arguments.output),
        checkpoints_dir=arguments.state,
        records_per_chunk=arguments.records_per_chunk,
    )
    pauses_s: list[float] = []
    watching = asyncio.create_task(watch_pauses(pauses_s)) if arguments.pauses else None
    manifest = await runner.run_async([arguments.source])
    if watching is not None:
        watching.cancel()
        pauses_s.sort()
        report["pause_p50_ms"] = 1000 * pauses_s[len(pauses_s) // 2]
        report["pause_p99_ms"] = 1000 * pauses_s[len(pauses_s) * 99 // 100]
        report["pause_max_ms"] = 1000 * pauses_s[-1]
    report["requests"] = manifest.requests_sent
    report["documents"] = manifest.documents_written


if __name__ == "__main__":
    parser = contestant_parser()
    parser.add_argument("output")
    parser.add_argument("state")
    parser.add_argument("--records-per-chunk", type=int, default=6000)
    parser.add_argument("--pauses", action="store_true", help="report by how much the event loop was late")
    parser.add_argument("--profile", help="write a cProfile of the event loop's thread to this file")
    options = parser.parse_args()
    profile = cProfile.Profile()
    with measured() as measures:
        if options.profile:
            profile.enable()
        asyncio.run(run(options, measures))
    if options.profile:
        profile.disable()
        profile.dump_stats(options.profile)
