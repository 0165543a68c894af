"""Routing, retries, slots and what is fatal, on endpoints."""

from __future__ import annotations

import asyncio
import time

import pytest
from servers.model_server import chat, run_dummy
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    EndpointUnavailableError,
    MalformedResponseError,
    RequestRejectedError,
    RequestTimeoutError,
    ServerError,
    ServerStartError,
    TruncatedError,
)
from airflow_provider_rollout.engine.serving.dummy_app import answer_words


async def test_an_answer_is_counted(opened):
    """Requests and tokens."""
    async with run_dummy() as dummy, opened(dummy) as it:
        result = await it.generate(chat("one two three", max_tokens=4))
        assert len(result.text.split()) == 4
        assert it.totals == {
            "requests_sent": 1,
            "requests_succeeded": 1,
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "truncated": 1,
        }
        assert it.queues.sizes["in_flight"] == 0
        assert it.dispatcher.server_start_s is not None
        assert it.dispatcher.log_tail() is None


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_a_passing_refusal_is_retried(opened, status):
    """Twice refused, then answered."""
    async with run_dummy({"action": "status", "status": status, "first": 2}) as dummy, opened(dummy) as it:
        assert (await it.generate(chat("x"))).text
        assert it.totals["requests_sent"] == 3
        assert it.totals["requests_retried"] == 2
        assert dummy.counts["requests"] == 3


@pytest.mark.parametrize("action", ["drop", "cut", "cut_chunked"])
async def test_a_broken_connection_is_retried(opened, action):
    """The endpoint is asked whether it is there, and the request sent again."""
    async with run_dummy({"action": action, "first": 2}) as dummy, opened(dummy) as it:
        assert (await it.generate(chat("x"))).text
        assert dummy.counts["requests"] == 3


@pytest.mark.parametrize(
    ("rule", "kind", "attempts"),
    [
        ({"action": "status", "status": 400, "body": "503 timeout overloaded"}, BadRequestError, 1),
        ({"action": "status", "status": 422}, BadRequestError, 1),
        ({"action": "status", "status": 503, "body": "BadRequestError 400"}, RequestRejectedError, 3),
        ({"action": "shape", "shape": "html"}, MalformedResponseError, 3),
        ({"action": "drop"}, EndpointUnavailableError, 3),
        ({"action": "hang"}, RequestTimeoutError, 3),
    ],
)
async def test_one_bad_request_fails_alone_after_bounded_attempts(opened, rule, kind, attempts):
    """The others are answered; the payload's own words decide nothing."""
    limits = {"max_request_attempts": 3, "request_timeout": 0.3}
    async with run_dummy({**rule, "match": "doc 7 "}) as dummy, opened(dummy, **limits) as it:
        results = await it.ask(12)
        assert isinstance(results[7], kind)
        assert results[7].attempts == attempts
        assert "doc 7" not in str(results[7])
        assert sum(isinstance(result, Exception) for result in results) == 1
        assert it.totals["requests_failed"] == 1
        assert dummy.counts["requests"] == 11 + attempts
        assert it.queues.sizes["in_flight"] == 0


@pytest.mark.alone
async def test_a_wait_before_a_retry_holds_no_slot(opened):
    """One slot, one document told to come back in a second: the others do not wait for it."""
    rule = {"match": "doc 0 ", "action": "status", "status": 429, "retry_after": "1", "first": 1}
    async with run_dummy(rule) as dummy, opened(dummy, max_concurrent_generations=1) as it:
        begun_s = time.monotonic()
        slow = asyncio.create_task(it.generate(chat("doc 0 .")))
        await asyncio.sleep(0)
        for index in range(1, 20):
            await it.generate(chat(f"doc {index} ."))
        assert time.monotonic() - begun_s < 0.9
        assert not slow.done()
        await slow
        assert 1.0 <= time.monotonic() - begun_s < 1.6


async def test_retry_after_is_capped(opened):
    """A server that wants a day gets what the config allows."""
    rule = {"action": "status", "status": 503, "retry_after": "86400", "first": 1}
    async with run_dummy(rule) as dummy, opened(dummy, retry_after_max_sec=0.1) as it:
        async with asyncio.timeout(2):
            assert (await it.generate(chat("x"))).text


async def test_no_more_requests_are_in_flight_than_allowed(opened):
    """The ceiling is seen at the server."""
    async with run_dummy(latency_ms=5) as dummy, opened(dummy, max_concurrent_generations=7) as it:
        assert not [result for result in await it.ask(100) if isinstance(result, Exception)]
        assert dummy.counts["max_in_flight"] == 7


async def test_a_burst_beyond_the_backlog_of_the_server_is_answered_all_the_same(opened):
    """Five hundred connections at once where sixteen may wait to be accepted; whatever the kernel does with the others."""
    flags = ["--model", "m", "--backlog", "16", "--latency-ms", "50"]
    with dummy_process(*flags) as server:
        async with opened(server.url, max_concurrent_generations=500) as it:
            assert not [result for result in await it.ask(500) if isinstance(result, Exception)]
            assert it.totals["requests_failed"] == 0


async def test_adaptive_concurrency_settles_below_what_the_server_bears(opened):
    """A server that refuses more than 32 in flight sees no burst, and refuses few."""
    limits = {"max_concurrent_generations": 500, "adaptive_concurrency": True, "max_request_attempts": 20}
    async with run_dummy(max_in_flight=32, latency_ms=10, refuse_status=429) as dummy, opened(dummy, **limits) as it:
        results = await it.ask(2000)
        assert not [result for result in results if isinstance(result, Exception)]
        assert dummy.counts["max_in_flight"] <= 72
        assert dummy.counts["status_429"] < 200


async def test_without_adaptive_concurrency_refusals_are_retried_too(opened):
    """More work, the same result."""
    async with run_dummy(max_in_flight=8, latency_ms=5) as dummy, opened(dummy, max_request_attempts=50) as it:
        assert not [result for result in await it.ask(60) if isinstance(result, Exception)]


async def test_requests_go_to_the_endpoint_with_the_fewest_in_flight(opened):
    """A slow one gets fewer."""
    async with (
        run_dummy(latency_ms=40) as slow,
        run_dummy(latency_ms=4) as fast,
        opened(slow, fast, max_concurrent_generations=10) as it,
    ):
        await it.ask(200)
        assert slow.counts["requests"] + fast.counts["requests"] == 200
        assert fast.counts["requests"] > 2 * slow.counts["requests"]
        assert slow.counts["requests"] >= 5


async def test_an_endpoint_that_dies_and_comes_back_is_left_and_used_again(opened):
    """The job goes on with the other one; nothing is lost, nothing asked twice without need."""
    first = run_dummy(latency_ms=5)
    dummy = await first.__aenter__()
    port = int(dummy.url.rpartition(":")[2])
    async with run_dummy(latency_ms=5) as other, opened(dummy, other, max_concurrent_generations=20) as it:
        await it.ask(100)
        assert dummy.counts["requests"] > 20
        await first.__aexit__(None, None, None)
        assert not [result for result in await it.ask(100) if isinstance(result, Exception)]
        async with run_dummy(latency_ms=5, port=port) as again:
            async with asyncio.timeout(5):
                while not again.counts["requests"]:
                    assert not [result for result in await it.ask(20) if isinstance(result, Exception)]
                    await asyncio.sleep(0.1)


async def test_requests_wait_while_the_only_endpoint_restarts(opened):
    """A refused connection is not an attempt of the request's."""
    first = run_dummy()
    dummy = await first.__aenter__()
    port = int(dummy.url.rpartition(":")[2])
    async with opened(dummy, max_request_attempts=1) as it:
        await it.generate(chat("x"))
        await first.__aexit__(None, None, None)
        waiting = asyncio.create_task(it.ask(20))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        async with run_dummy(port=port):
            assert not [result for result in await waiting if isinstance(result, Exception)]


async def test_endpoints_that_stay_away_end_the_job(opened):
    """Within server_start_timeout_sec, and the message says what to check."""
    async with run_dummy() as dummy:
        url = dummy.url
    async with opened(url, is_ready=False, server_start_timeout_sec=0.3) as it:
        with pytest.raises(ServerStartError, match="check endpoint_url"):
            await it.dispatcher.wait_ready()
        with pytest.raises(ServerStartError):
            await it.generate(chat("x"))


async def test_wrong_credentials_are_found_before_the_first_request(opened, monkeypatch):
    """Fatal, and the key is in no message."""
    monkeypatch.setenv("DUMMY_API_KEY", "right")
    monkeypatch.setenv("MY_WRONG_KEY", "key-that-is-wrong")
    async with run_dummy() as dummy:
        async with opened(dummy, is_ready=False, api_key="MY_WRONG_KEY") as it:
            with pytest.raises(ServerError, match=r"401.*api_key") as caught:
                await it.dispatcher.wait_ready()
            assert "key-that-is-wrong" not in str(caught.value)
        async with opened(dummy, api_key="right\n") as it:
            assert (await it.generate(chat("x"))).text


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_endpoint_that_refuses_everybody_ends_the_job(opened, status):
    """Not thousands of documents one by one."""
    async with run_dummy({"action": "status", "status": status}) as dummy, opened(dummy) as it:
        results = await it.ask(5)
        assert all(type(result) is ServerError for result in results), results


@pytest.mark.parametrize("status", [403, 404])
async def test_a_single_403_or_404_among_good_answers_is_that_requests_own(opened, status):
    """A moderation filter refuses one prompt."""
    rule = {"match": "doc 3 ", "action": "status", "status": status}
    async with run_dummy(rule) as dummy, opened(dummy) as it:
        results = await it.ask(8)
        assert [index for index, result in enumerate(results) if isinstance(result, BadRequestError)] == [3]


async def test_a_model_that_only_one_rollout_asks_for_is_its_own_fault(opened):
    """An adapter that is not there; nothing else is touched."""
    async with run_dummy() as dummy, opened(dummy) as it:
        with pytest.raises(BadRequestError):
            await it.generate({**chat("x"), "model": "adapter"})
        assert (await it.generate(chat("x"))).text


@pytest.mark.parametrize(("policy", "requests"), [("keep", 1), ("fail", 1), ("retry", 3)])
async def test_a_truncated_answer_is_kept_failed_or_asked_again(opened, policy, requests):
    """As on_truncated says."""
    async with run_dummy() as dummy, opened(dummy, on_truncated=policy, max_request_attempts=3) as it:
        if policy == "keep":
            assert (await it.generate(chat("x", max_tokens=2))).finish_reason == "length"
        else:
            with pytest.raises(TruncatedError):
                await it.generate(chat("x", max_tokens=2))
        assert dummy.counts["requests"] == requests
        assert it.totals["truncated"] == requests


async def test_a_truncated_answer_is_asked_for_again_as_another_sample(opened):
    """With the next seed, where there is one; where sampling is greedy there is no other answer to be had."""
    ending = [("stop", seed) for seed in range(40) if answer_words(chat("x", max_tokens=20, seed=seed), 0)[1] == "stop"]
    first = next(seed for _, seed in ending if seed > 1 and ("stop", seed - 1) not in ending)
    async with run_dummy() as dummy, opened(dummy, on_truncated="retry") as it:
        payload = chat("x", max_tokens=20, seed=first - 1)
        result = await it.generate(payload)
        assert (result.finish_reason, result.text) == (
            "stop",
            " ".join(answer_words(chat("x", max_tokens=20, seed=first), 0)[0]),
        )
        assert payload["seed"] == first - 1
        assert dummy.counts["requests"] == 2
        with pytest.raises(TruncatedError):
            await it.generate(chat("y", max_tokens=2, temperature=0.0))
        assert dummy.counts["requests"] == 3


async def test_an_endpoint_that_hangs_is_left_although_it_answers_models(opened):
    """An open port proves nothing; the requests are sent again elsewhere."""
    async with (
        run_dummy({"action": "hang"}) as frozen,
        run_dummy() as good,
        opened(frozen, good, stall_timeout_sec=0.6) as it,
    ):
        async with asyncio.timeout(8):
            assert not [result for result in await it.ask(10) if isinstance(result, Exception)]
        assert frozen.counts["requests"] >= 5


async def test_one_long_generation_is_no_hang(opened):
    """Tokens move, though no request ends for long."""
    async with run_dummy(token_ms=50) as dummy, opened(dummy, stall_timeout_sec=0.6) as it:
        result = await it.generate(chat("x", max_tokens=40, ignore_eos=True))
        assert result.usage["completion_tokens"] == 40
        assert dummy.counts["requests"] == 1


async def test_a_cancelled_request_leaves_no_count_and_no_slot(opened):
    """The one slot is free again."""
    async with (
        run_dummy({"match": "stuck", "action": "hang"}) as dummy,
        opened(dummy, max_concurrent_generations=1) as it,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await it.generate(chat("stuck"))
        assert (await it.generate(chat("fine"))).text
        assert it.queues.sizes == {"in_flight": 0}


async def test_an_error_of_the_block_comes_out_as_it_is(opened):
    """Not wrapped in a group."""
    with pytest.raises(ZeroDivisionError):
        async with run_dummy() as dummy, opened(dummy):
            raise ZeroDivisionError
