"""Stands before an S3 server and counts the requests on the wire by what they are: LIST, GET, HEAD, PUT, DELETE, and of which objects.

Receives: the server's port.        Hands on: its own port on stdout; at /counts what has come since it was last asked.
Invariants: bytes pass unchanged, so that signatures stay valid. It ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from functools import partial
from urllib.parse import unquote

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PREFIX = re.compile(r"[?&]prefix=([^&]*)")
_STATE = re.compile(r"_rollout/([a-z]+)")
_READ_BYTES = 65_536


def kind_of(head: bytes) -> str:
    """Verb and kind of object of a request, "PUT attempts"; input and output objects are those outside of the state."""
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    path, _, query = target.partition("?")
    if method == "GET" and "list-type" in query:
        method, path = "LIST", unquote(found.group(1)) if (found := _PREFIX.search(target)) else ""
    elif method == "POST" and query.startswith("delete"):
        return "DELETE"
    state = _STATE.search(unquote(path))
    return f"{method} {state.group(1) if state else 'data'}"


async def relay(counts: Counter[str], port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection to the server for one of a client."""
    from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
    answers = asyncio.create_task(_copy(from_server, writer))
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /counts "):
                body = json.dumps(counts).encode()
                counts.clear()
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                break
            counts[kind_of(head)] += 1
            to_server.write(head)
            length = _LENGTH.search(head)
            missing = int(length.group(1)) if length else 0
            while missing:
                data = await reader.read(min(missing, _READ_BYTES))
                if not data:
                    return
                to_server.write(data)
                missing -= len(data)
            await to_server.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        to_server.close()
        answers.cancel()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda *_: None
    )  # Python 3.11 calls it an error when a connection's task is cancelled at the end
    server = await asyncio.start_server(partial(relay, Counter(), port), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
