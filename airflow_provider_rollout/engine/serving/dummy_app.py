"""A model server without a model: OpenAI's paths, vLLM's metrics, answers that depend on the request alone, faults on demand.

    python -m airflow_provider_rollout.engine.serving.dummy --port 8000 --latency-ms 50 --faults faults.json

Receives: HTTP requests.        Hands on: answers whose tokens are words, counted honestly.
Invariants: one payload has one answer, whatever came before; /stats counts what arrived, so that a test can compare it with what was
asked. The key comes by environment (``DUMMY_API_KEY`` or ``VLLM_API_KEY``), and only /v1 asks for it, as with vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import orjson
from aiohttp import web

from airflow_provider_rollout.engine.serving.faults import SHAPES, FaultRule, FaultScript, load_script

__all__ = ["DummyServer", "answer_words", "listening", "main", "make_dummy"]

_TEXT = (
    "and are can day each find from have into just know like long made make many more most much near only other over part "
    "place right same should since small some still such take than that their them then there these they thing think this "
    "time under very water well were what when where which while with word work world would write year"
)
_WORDS = _TEXT.split()
_SHORTEST, _LONGEST = 8, 40  # words of an answer that no limit cuts
_SLICE_S = 0.25  # tokens are counted as they are made, at this grain
_METRICS = """vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {prompt_tokens}
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {generation_tokens}
"""


def answer_words(payload: dict[str, Any], choice_index: int) -> tuple[list[str], str]:
    """The answer to a payload, and its finish_reason."""
    seed = orjson.dumps([payload, choice_index], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2b(seed, digest_size=64).digest()
    natural = _SHORTEST + digest[0] % (_LONGEST - _SHORTEST + 1)
    limit = payload.get("max_tokens") or payload.get("max_completion_tokens")
    length = natural if not isinstance(limit, int) else limit if payload.get("ignore_eos") else min(limit, natural)
    words = [_WORDS[digest[index % 64] % len(_WORDS)] for index in range(length)]
    return words, "length" if isinstance(limit, int) and length == limit else "stop"


def _prompt(payload: dict[str, Any]) -> str:
    if "messages" not in payload:
        return str(payload.get("prompt", ""))
    return "\n".join(str(message.get("content", "")) for message in payload["messages"] if isinstance(message, dict))


class DummyServer:
    """The server's state: settings, faults, counts.

    Attributes:
        counts: what /stats tells.
        requests_by_prompt: requests by the first 16 hex digits of the prompt's SHA-256.
    """

    def __init__(self, options: argparse.Namespace, script: FaultScript) -> None:
        self._options = options
        self._script = script
        self._keys = {key for name in ("DUMMY_API_KEY", "VLLM_API_KEY") if (key := os.environ.get(name))}
        self.requests_by_prompt: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._log = (
            os.open(options.log_requests, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if options.log_requests else None
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request."""
        path = request.path
        if path.startswith("/v1/") and self._keys and request.headers.get("Authorization", "")[7:] not in self._keys:
            return _json({"error": "Unauthorized"}, 401)
        if path in {"/v1/chat/completions", "/v1/completions"}:
            if request.method != "POST":
                return _json({"detail": "Method Not Allowed"}, 405)
            return await self._generate(request)
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": self._options.model, "object": "model"}]})
        if path == "/health":
            return web.Response()
        if path == "/metrics" and not self._options.no_metrics:
            values = {name: self.counts[name] for name in ("running", "prompt_tokens", "generation_tokens")}
            return web.Response(text=_METRICS.format(model=self._options.model, **values))
        if path == "/stats":
            return _json({**self.counts, "by_prompt": self.requests_by_prompt})
        return _json({"detail": "Not Found"}, 404)

    async def _generate(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        started_s = time.monotonic()
        counts = self.counts
        counts["requests"] += 1
        counts["running"] += 1
        counts["max_in_flight"] = max(counts["max_in_flight"], counts["running"])
        status = 0
        try:
            response = await self._answer(request, body)
        except asyncio.CancelledError:
            counts["aborted"] += 1
            raise
        else:
            status = response.status
            counts[f"status_{status}"] += 1
            return response
        finally:
            counts["running"] -= 1
            if self._log is not None:
                line = {"prompt": _hash(body), "status": status, "started_s": started_s, "ended_s": time.monotonic()}
                os.write(self._log, orjson.dumps(line) + b"\n")

    async def _answer(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        options = self._options
        if options.max_in_flight and self.counts["running"] > options.max_in_flight:
            return _error(options.refuse_status, "The engine is currently busy and cannot accept new requests.")
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError:
            return _error(400, "1 validation error: {'type': 'json_invalid'}")
        if not isinstance(payload, dict):
            return _error(400, "the body is not an object")
        if payload.get("model", options.model) != options.model:
            return _error(404, f"The model `{payload['model']}` does not exist.")
        prompt = _prompt(payload)
        self.requests_by_prompt[hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]] += 1
        rule = self._script.choose(prompt)
        if rule is not None:
            faulty = await self._play(rule, request)
            if faulty is not None:
                return faulty
        return await self._complete(payload, prompt, is_chat=request.path == "/v1/chat/completions")

    async def _complete(self, payload: dict[str, Any], prompt: str, *, is_chat: bool) -> web.Response:
        options = self._options
        prompt_tokens = len(prompt.split())
        if options.max_model_len and prompt_tokens > options.max_model_len:
            return _error(400, f"This model's maximum context length is {options.max_model_len} tokens.")
        answers = [answer_words(payload, index) for index in range(int(payload.get("n") or 1))]
        tokens = sum(len(words) for words, _ in answers)
        self.counts["prompt_tokens"] += prompt_tokens
        await self._take_time(tokens)
        choices = []
        for index, (words, finish_reason) in enumerate(answers):
            text = " ".join(words)
            body = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            choices.append({"index": index, **body, "logprobs": None, "finish_reason": finish_reason})
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
        kind = "chat.completion" if is_chat else "text_completion"
        return _json({"id": "dummy", "object": kind, "model": options.model, "choices": choices, "usage": usage})

    async def _take_time(self, tokens: int) -> None:
        fixed_s, per_token_s = self._options.latency_ms / 1000, self._options.token_ms / 1000
        if fixed_s:
            await asyncio.sleep(fixed_s)
        at_once = max(1, int(_SLICE_S / per_token_s)) if per_token_s else tokens
        for made in range(0, tokens, max(1, at_once)):
            count = min(at_once, tokens - made)
            if per_token_s:
                await asyncio.sleep(count * per_token_s)
            self.counts["generation_tokens"] += count

    async def _play(self, rule: FaultRule, request: web.BaseRequest) -> web.StreamResponse | None:
        """Do what a rule says; None when the request is to be answered after all."""
        self.counts[f"fault_{rule.action}"] += 1
        if rule.action == "status":
            headers = {} if rule.retry_after is None else {"Retry-After": rule.retry_after}
            return web.Response(status=rule.status, body=rule.body.encode(), headers=headers)
        if rule.action == "shape":
            return web.Response(body=SHAPES[rule.shape], content_type="application/json")
        if rule.action == "hang":
            await asyncio.Event().wait()
        if rule.action in {"slow", "die"}:
            await asyncio.sleep(rule.seconds)
        if rule.action == "die":
            os._exit(rule.status % 256)
        if rule.action in {"drop", "cut", "cut_chunked"}:
            return await _break_off(request, rule.action)
        return None


async def _break_off(request: web.BaseRequest, how: Literal["drop", "cut", "cut_chunked"]) -> web.StreamResponse:
    response = web.StreamResponse()
    if how != "drop":
        if how == "cut":
            response.content_length = 1000
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b'{"choices":[{"mess')
    if request.transport is not None:
        request.transport.abort()
    return response


def _hash(body: bytes) -> str:
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        return hashlib.sha256(_prompt(orjson.loads(body)).encode("utf-8", "replace")).hexdigest()[:16]
    return "unreadable"


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": "Error", "param": None, "code": status}}, status)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dummy", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; it is printed")
    parser.add_argument("--model", default="dummy")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="per request")
    parser.add_argument("--token-ms", type=float, default=0.0, help="per token")
    parser.add_argument("--start-delay-s", type=float, default=0.0)
    parser.add_argument("--max-model-len", type=int, help="longest prompt in words; longer ones get a 400")
    parser.add_argument("--max-in-flight", type=int, help="requests beyond it are refused")
    parser.add_argument("--backlog", type=int, default=4096, help="connections that wait to be accepted")
    parser.add_argument("--refuse-status", type=int, default=503)
    parser.add_argument("--faults", help="a JSON list of rules, or a file that holds one; see faults.py")
    parser.add_argument("--log-requests", type=Path, help="file that gets one JSON line per request, across restarts")
    parser.add_argument("--no-metrics", action="store_true", help="as a server of another maker; /metrics is not found")
    parser.add_argument("--ignore-sigterm", action="store_true", help="go on serving when asked to stop")
    return parser


@contextlib.asynccontextmanager
async def listening(options: argparse.Namespace, server: DummyServer) -> AsyncIterator[str]:
    """Serve in this process for as long as the block runs; the base URL."""
    loop = asyncio.get_running_loop()

    def unbounded(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)

    low = web.Server(server.handle, request_factory=unbounded, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(low, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, backlog=options.backlog).start()
        yield f"http://{options.host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _serve(options: argparse.Namespace, server: DummyServer) -> None:
    await asyncio.sleep(options.start_delay_s)
    async with listening(options, server) as url:
        sys.stdout.write(f"dummy server on {url}\n")
        sys.stdout.flush()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(
                number, (lambda: None) if options.ignore_sigterm else stop.set
            )
        await stop.wait()
        os._exit(0)  # at once, with requests in flight, as a server that is told to


def make_dummy(arguments: list[str] | None = None) -> tuple[argparse.Namespace, DummyServer]:
    """The options and the server for a command line."""
    options = _arguments().parse_args(arguments)
    text = options.faults or "[]"
    script = load_script(text if text.lstrip().startswith("[") else Path(text).read_text())
    return options, DummyServer(options, script)


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM."""
    options, server = make_dummy(arguments)
    asyncio.run(_serve(options, server))


if __name__ == "__main__":
    main()
