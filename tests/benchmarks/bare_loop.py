"""The client to be measured by: aiohttp, a number of workers, nothing kept but the answers' texts.

Receives: the arguments of measured.py.        Hands on: its report.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import aiohttp
import orjson
from measured import Span, contestant_parser, measured, payload_of, profiled


async def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Send every request once; how many, and when."""
    span = Span()
    url = f"{arguments.url}/v1/chat/completions"
    fixed = {"model": arguments.model, **arguments.params}
    texts: list[str] = []
    lines = Path(arguments.source).read_bytes().splitlines()  # noqa: ASYNC240 - before the first request
    documents = (orjson.loads(line)["text"] for line in lines for _ in range(arguments.rollouts))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Content-Type": "application/json"}) as session:
        span.called()

        async def work() -> None:
            for text in documents:
                async with session.post(url, data=orjson.dumps({**fixed, **payload_of(text)})) as response:
                    texts.append(orjson.loads(await response.read())["choices"][0]["message"]["content"])

        async with asyncio.TaskGroup() as group:
            for _ in range(arguments.in_flight):
                group.create_task(work())
        span.answered()
    return {"requests": len(texts), **span.report()}


if __name__ == "__main__":
    options = contestant_parser().parse_args()
    with measured() as report, profiled(options.profile):
        report.update(asyncio.run(run(options)))
