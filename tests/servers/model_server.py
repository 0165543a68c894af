"""A dummy model server inside the test's process, and a server that sends what it is told to.

Receives: faults, flags, bytes.        Hands on: a URL on a real socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from airflow_provider_rollout.engine.serving.dummy_app import DummyServer, listening, make_dummy


def chat(text: str, **parameters: Any) -> dict[str, Any]:
    """A payload as generate.py hands it on."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **parameters}


class Running:
    """A dummy server in this process, at a URL."""

    def __init__(self, url: str, server: DummyServer) -> None:
        self.url = url
        self.counts = server.counts
        self.requests_by_prompt = server.requests_by_prompt


@asynccontextmanager
async def run_dummy(*faults: dict[str, Any], **flags: Any) -> AsyncIterator[Running]:
    """Serve in this process; flags as on the command line."""
    arguments = ["--model", "m", "--faults", json.dumps(faults)]
    for name, value in flags.items():
        arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    options, server = make_dummy(arguments)
    async with listening(options, server) as url:
        yield Running(url, server)


@asynccontextmanager
async def raw_server(answer: bytes, *, close: bool = True) -> AsyncIterator[str]:
    """A server that reads a request's head and sends these bytes; the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
