"""One request over a real socket; every foreign error becomes ours."""

from __future__ import annotations

import asyncio
import time

import pytest
from servers.model_server import chat, raw_server, run_dummy

from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    EndpointUnavailableError,
    InferenceError,
    MalformedResponseError,
    RequestRejectedError,
    RequestTimeoutError,
)
from airflow_provider_rollout.engine.serving.client import EndpointClient, api_base
from airflow_provider_rollout.engine.serving.wire import encode_request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWER = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'


async def complete(url, payload=None, *, key=None, timeout_s=None):
    """Ask once."""
    async with EndpointClient(url, api_key=key, timeout_s=timeout_s) as client:
        return await client.complete(encode_request(payload or chat("hello"), use_chat=True))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://h/api/v1/chat/completions", "https://h/api/v1"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("https://h/gateway", "https://h/gateway/v1"),
        ("https://h/openai/v1?api-version=1", "https://h/openai/v1?api-version=1"),
    ],
)
def test_the_base_is_found_with_and_without_v1(url, base):
    """Readiness and requests use the same base."""
    assert str(api_base(url)) == base


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_the_url_works_with_and_without_v1(ending):
    """Nobody has to know which one a library wants."""
    async with run_dummy() as dummy:
        result = await complete(dummy.url + ending, chat("hello", max_tokens=3))
        assert len(result.text.split()) == 3
        assert result.finish_reason == "length"
        assert result.usage["completion_tokens"] == 3


async def test_completions_have_a_path_of_their_own():
    """A prompt goes to /v1/completions."""
    async with run_dummy() as dummy:
        result = await complete(dummy.url, {"model": "m", "prompt": "hello there", "max_tokens": 2, "n": 2})
        assert len(result.choices) == 1
        assert result.usage["prompt_tokens"] == 2


async def test_the_key_is_sent_and_is_in_no_message(monkeypatch):
    """Also when the server repeats it."""
    monkeypatch.setenv("DUMMY_API_KEY", "right-key")
    async with run_dummy() as dummy:
        assert (await complete(dummy.url, key="right-key")).text
        with pytest.raises(BadRequestError) as caught:
            await complete(dummy.url, key="wrong-key")
        assert caught.value.status == 401
    async with raw_server(b"HTTP/1.1 400 Bad\r\nContent-Length: 18\r\n\r\nthe key: wrong-key") as url:
        with pytest.raises(BadRequestError) as caught:
            await complete(url, key="wrong-key")
        assert "wrong-key" not in str(caught.value)
        assert "the key" in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"", EndpointUnavailableError),
        (HEAD + b"Content-Length: 1000\r\n\r\n" + ANSWER, EndpointUnavailableError),
        (HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"cho\r\n', EndpointUnavailableError),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", InferenceError),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd", InferenceError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", MalformedResponseError),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", BadRequestError),
        (b"HTTP/1.1 204 No Content\r\n\r\n", BadRequestError),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n", MalformedResponseError),
    ],
)
async def test_a_broken_answer_ends_as_one_of_our_errors(sent, kind):
    """Cut and garbled bodies, other protocols, endless headers."""
    async with raw_server(sent) as url:
        with pytest.raises(kind) as caught:
            await complete(url)
        assert "hello" not in str(caught.value)


async def test_a_body_without_a_length_and_one_in_chunks_are_whole():
    """Both ways in which HTTP/1.1 leaves the length open."""
    async with raw_server(HEAD + b"Connection: close\r\n\r\n" + ANSWER) as url:
        assert (await complete(url)).text == "yes"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in ANSWER) + b"0\r\n\r\n"
    async with raw_server(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) as url:
        assert (await complete(url)).text == "yes"


async def test_megabytes_go_both_ways():
    """Images in a prompt, long answers."""
    async with run_dummy({"match": "big", "action": "shape", "shape": "huge"}) as dummy:
        assert len((await complete(dummy.url, chat("big " + "x" * 3_000_000))).text) == 5_000_000


async def test_a_refused_connection_was_never_sent():
    """attempts=0 tells the dispatcher that the server has not seen the request."""
    async with run_dummy() as dummy:
        url = dummy.url
    with pytest.raises(EndpointUnavailableError) as caught:
        await complete(url)
    assert caught.value.attempts == 0
    with pytest.raises(EndpointUnavailableError) as caught:
        await complete("http://no-such-host.invalid:1")
    assert caught.value.attempts == 0


async def test_request_timeout_is_kept_and_none_waits():
    """By default a slow generation is waited for."""
    async with run_dummy({"action": "slow", "seconds": 0.4}) as dummy:
        with pytest.raises(RequestTimeoutError, match="request_timeout"):
            await complete(dummy.url, timeout_s=0.1)
        assert (await complete(dummy.url)).text


async def test_a_body_that_trickles_is_waited_for_and_bounded_by_request_timeout():
    """Silence and slowness are told apart by the limit alone."""

    async def trickle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER))
        for byte in ANSWER:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.005)
        writer.close()
        ended.release()

    ended = asyncio.Semaphore(0)
    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await complete(url)).text == "yes"
        with pytest.raises(RequestTimeoutError):
            await complete(url, timeout_s=0.1)
        for _ in range(2):
            await ended.acquire()


async def test_retry_after_is_handed_on():
    """As seconds, with the status."""
    async with run_dummy({"action": "status", "status": 429, "retry_after": "7"}) as dummy:
        with pytest.raises(RequestRejectedError) as caught:
            await complete(dummy.url)
        assert (caught.value.status, caught.value.retry_after_s) == (429, 7.0)


async def test_a_cancelled_request_closes_its_connection():
    """So that the server stops generating."""
    async with (
        run_dummy({"action": "hang"}) as dummy,
        EndpointClient(dummy.url, api_key=None, timeout_s=None) as client,
    ):
        request = encode_request(chat("x"), use_chat=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.complete(request)
        left_at_s = time.monotonic()
        while not dummy.counts["aborted"]:
            assert time.monotonic() - left_at_s < 1
            await asyncio.sleep(0.01)


async def test_connections_are_used_again():
    """One hundred requests in a row, one connection."""
    made = 0

    async def handle(reader, writer):
        nonlocal made
        made += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
            if made_requests.append(1) or len(made_requests) == 100:
                break
        writer.close()

    made_requests: list[int] = []
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with EndpointClient(url, api_key=None, timeout_s=None) as client:
            for _ in range(100):
                await client.complete(encode_request(chat("x"), use_chat=True))
    assert made == 1


async def test_abort_breaks_what_is_in_flight_and_lets_later_requests_through():
    """How a replica that hangs is left."""
    fault = {"match": "stuck", "action": "hang"}
    async with run_dummy(fault) as dummy, EndpointClient(dummy.url, api_key=None, timeout_s=None) as client:
        stuck = asyncio.create_task(client.complete(encode_request(chat("stuck"), use_chat=True)))
        while not dummy.counts["running"]:
            await asyncio.sleep(0.01)
        await client.abort()
        with pytest.raises(EndpointUnavailableError):
            await stuck
        assert (await client.complete(encode_request(chat("fine"), use_chat=True))).text


async def test_the_token_counters_are_read():
    """Sum of prompt and generation tokens; None where a server has no /metrics."""
    async with run_dummy() as dummy, EndpointClient(dummy.url, api_key=None, timeout_s=None) as client:
        assert await client.tokens_total() == 0
        await client.complete(encode_request(chat("one two", max_tokens=5), use_chat=True))
        assert await client.tokens_total() == 7
    none = raw_server(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
    async with none as url, EndpointClient(url, api_key=None, timeout_s=None) as client:
        assert await client.tokens_total() is None
