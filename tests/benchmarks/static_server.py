"""A server that costs its clients nothing to wait for: a ready-made completion of 2.6 KB for every POST, from a process of its own.

Receives: HTTP/1.1 requests with a Content-Length; seconds to wait before an answer, on average; how many POSTs to answer, as later
ones hang.
Hands on: one of some hundred answers in turn, 0.03 ms of CPU each; its port on stdout; at /stats how many POSTs came, and when the
first one did.
Invariant: it ends when its standard input is closed, and so with whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
import time
from functools import partial

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


def _http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _completion(number: int) -> bytes:
    chooser = random.Random(number)
    words = " ".join(f"{chooser.randrange(16**8):08x}"[: chooser.randrange(2, 9)] for _ in range(385))
    message = {"role": "assistant", "content": words, "reasoning": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 500, "completion_tokens": 600, "total_tokens": 1100, "prompt_tokens_details": None}
    ids = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": None}
    return json.dumps({**ids, "choices": [choice], "usage": usage}).encode()


ANSWERS = [_http(_completion(number)) for number in range(251)]  # different, or they would be compressed to nothing
MODELS = _http(json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode())


class Counts:
    """What has been asked of the server."""

    def __init__(self, delay_s: float, answered: float) -> None:
        self.delay_s = delay_s
        self._chooser = random.Random(0)
        self.answered = answered
        self.posts = 0
        self.first_post_at_s: float | None = None

    def next_delay_s(self) -> float:
        """The mean delay, give or take a half: answers of equal delay come in waves, as no model's do."""
        return self.delay_s * self._chooser.uniform(0.5, 1.5)


class Static(asyncio.Protocol):
    """One connection."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[:end]
            length = _LENGTH.search(head)
            whole = end + 4 + (int(length.group(1)) if length else 0)
            if len(self._pending) < whole:
                return
            self._pending = self._pending[whole:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        counts = self._counts
        if head.startswith(b"POST"):
            counts.posts += 1
            answer = ANSWERS[counts.posts % len(ANSWERS)]
            counts.first_post_at_s = counts.first_post_at_s or time.monotonic()
            if counts.posts > counts.answered:
                return
            if counts.delay_s:
                asyncio.get_running_loop().call_later(counts.next_delay_s(), self._transport.write, answer)
                return
            self._transport.write(answer)
        elif head.startswith(b"GET /stats"):
            self._transport.write(
                _http(json.dumps({"posts": counts.posts, "first_post_at_s": counts.first_post_at_s}).encode())
            )
        else:
            self._transport.write(MODELS)
        if _CLOSE.search(head):
            self._transport.close()


async def main(delay_s: float = 0.0, answered: float = float("inf")) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Static, Counts(delay_s, answered)), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main(*map(float, sys.argv[1:])))
