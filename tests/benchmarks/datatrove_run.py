"""datatrove's InferenceRunner as a contestant, in an environment of its own.

Receives: the arguments of measured.py, a folder; whether checkpoints and request cache are on.        Hands on: its report.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import ParquetWriter
from loguru import logger
from measured import contestant_parser, measured, payload_of


async def rollout(document: Any, generate: Any) -> Any:
    """One call per rollout."""
    return await generate(payload_of(document.text))


def run(arguments: argparse.Namespace) -> int:
    """Run all documents; how many requests were answered."""
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=arguments.url,
        model_name_or_path=arguments.model,
        max_concurrent_generations=arguments.in_flight,
        max_concurrent_documents=arguments.in_flight,
        rollouts_per_document=arguments.rollouts,
        default_generation_params=arguments.params,
        server_ready_delay_sec=0.05,
    )
    state = None if arguments.no_checkpoints else f"{arguments.folder}/state"
    name = "${rank}_chunk_${chunk_index}.parquet" if state else "${rank}.parquet"
    writer = ParquetWriter(f"{arguments.folder}/out", output_filename=name)
    runner = InferenceRunner(rollout, config, writer, checkpoints_local_dir=state)
    source = Path(arguments.source)
    asyncio.run(runner.run_async(JsonlReader(str(source.parent), glob_pattern=source.name)(), rank=0))
    return int(runner.metrics.total_metrics["successful_requests"])


if __name__ == "__main__":
    logger.remove()
    parser = contestant_parser()
    parser.add_argument("folder")
    parser.add_argument("--no-checkpoints", action="store_true")
    options = parser.parse_args()
    with measured() as report:
        report["requests"] = run(options)
