"""A server's life under its guard: start, ready, watch, stop, and again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from servers.model_server import chat

from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    QuarantinedError,
    RequestRejectedError,
    ServerExitedError,
    ServerStartError,
)
from airflow_provider_rollout.engine.serving.guard import EXIT_UNKILLABLE

DUMMY = "airflow_provider_rollout.engine.serving.dummy"


@pytest.fixture
def started_here() -> Callable[[], set[psutil.Process]]:
    """What this test has started and is there: the object store of the session may serve since an earlier one."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: set(psutil.Process().children(recursive=True)) - before


def server_processes() -> list[psutil.Process]:
    """The dummy servers below this process."""
    below = [process for process in psutil.Process().children(recursive=True) if _is_alive(process)]
    return [
        process for process in below if DUMMY in process.cmdline() and "guard.py" not in " ".join(process.cmdline())
    ]


def _is_alive(process: psutil.Process) -> bool:
    """Not a zombie, which an earlier test may have left to be reaped by whoever collects its Popen."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def logged(path: Path) -> list[dict]:
    """What arrived at the server, over all its lives."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_server_starts_serves_and_is_gone_after_the_block(opened, started_here, tmp_path):
    """Bound to the loopback interface, with a key that no command line shows."""
    async with opened() as it:
        assert (await it.generate(chat("x"))).text
        (server,) = server_processes()
        assert [connection.laddr.ip for connection in server.net_connections() if connection.status == "LISTEN"] == [
            "127.0.0.1"
        ]
        key = server.environ()["DUMMY_API_KEY"]
        assert len(key) >= 32
        children = filter(_is_alive, psutil.Process().children(recursive=True))
        assert not any(key in " ".join(process.cmdline()) for process in children)
        assert it.totals["server_starts"] == 1
        assert it.dispatcher.log_tail().startswith("dummy server on http://127.0.0.1:")
    assert not started_here()
    assert [path.name for path in tmp_path.iterdir()] == [f"dummy_0.{os.getpid()}.log"]


async def test_an_unknown_flag_is_reported_at_once(opened):
    """With the server's own words and advice; no second start, no waiting for the start timeout."""
    begun_s = time.monotonic()
    async with opened(is_ready=False, model_kwargs={"no_such_flag": 1}) as it:
        with pytest.raises(ServerStartError) as caught:
            await it.dispatcher.wait_ready()
        assert time.monotonic() - begun_s < 5
        assert "unrecognized arguments: --no-such-flag" in str(caught.value)
        assert "Hint: the server does not know a flag; check model_kwargs" in str(caught.value)
        assert it.totals["server_starts"] == 1


async def test_a_missing_program_is_reported_at_once(opened):
    """With what to install."""
    values = {"server_type": "vllm", "server_command": ["no-such-vllm", "serve"]}
    async with opened(is_ready=False, **values) as it:
        with pytest.raises(ServerStartError, match=r"code 127.*Hint: the program is not installed"):
            await it.dispatcher.wait_ready()


async def test_a_server_that_dies_at_its_start_is_started_again_so_often(opened):
    """Then the job ends; its log may hold anything, lines without end and bytes that are no text."""
    noise = "import sys; sys.stderr.buffer.write(b'\\xff' * 300_000 + b'\\nRuntimeError: CUDA out of memory\\n'); sys.exit(1)"
    values = {"server_type": "custom", "server_command": [sys.executable, "-c", noise], "server_start_max_retries": 1}
    async with opened(is_ready=False, **values) as it:
        with pytest.raises(ServerStartError, match="exited with code 1 before it was ready") as caught:
            await it.dispatcher.wait_ready()
        assert it.totals["server_starts"] == 2
        assert "lower gpu_memory_utilization" in str(caught.value)
        assert len(str(caught.value)) < 20_000


async def test_a_start_that_a_corrupt_compile_cache_spoils_succeeds_with_an_empty_one(opened, tmp_path):
    """As vLLM dies where two processes have written its cache at once; the third start has a cache of its own."""
    vllm = textwrap.dedent(f"""
        import os, sys
        if os.path.exists(os.environ["VLLM_CACHE_ROOT"]):
            sys.exit("torch._inductor: corrupt cache")
        words = sys.argv[1:]
        kept = {{"--host", "--port"}}
        flags = [word for name, word in zip(words, words[1:]) for word in (name, word) if name in kept]
        os.execv(sys.executable, [sys.executable, "-m", {DUMMY!r}, "--model", words[0], *flags])
    """)
    (tmp_path / "cache").mkdir()
    values = {"server_type": "vllm", "server_command": [sys.executable, "-c", vllm]}
    environment = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    async with opened(**values, server_env=environment) as it:
        assert (await it.generate(chat("x"))).text
        assert it.totals["server_starts"] == 3


async def test_a_server_that_is_never_ready_is_given_up(opened):
    """After server_start_timeout_sec, saying what the port answered last."""
    values = {"server_command": ["sleep", "60"], "server_type": "custom"}
    limits = {"server_start_timeout_sec": 0.4, "server_start_max_retries": 0}
    async with opened(is_ready=False, **values, **limits) as it:
        with pytest.raises(ServerStartError, match=r"not ready within 0 s: cannot connect to"):
            await it.dispatcher.wait_ready()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_dies_mid_run_is_replaced_and_its_requests_replayed(opened, tmp_path, signal_number):
    """Whatever its exit code; the attempt is not the request's own."""
    flags = {"latency_ms": 300, "log_requests": str(tmp_path / "requests")}
    async with opened(model_kwargs=flags, max_request_attempts=1) as it:
        asked = asyncio.create_task(it.ask(20))
        while it.queues.sizes["in_flight"] < 20:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        server_processes()[0].send_signal(signal_number)
        results = await asked
        assert not [result for result in results if isinstance(result, Exception)]
        assert it.totals["server_starts"] == 2
        assert it.totals["requests_retried"] == 20
        assert it.totals["requests_sent"] == 40


async def test_a_request_that_kills_servers_is_quarantined_and_the_rest_is_answered(opened):
    """It dies with others, among few, and at last alone; each death costs a restart and no result."""
    poison = {"match": "doc 13 ", "action": "die", "seconds": 0.05}
    flags = {"faults": json.dumps([poison]), "latency_ms": 100}
    async with opened(model_kwargs=flags, max_concurrent_generations=40, server_start_max_retries=1) as it:
        results = await it.ask(60)
        assert [index for index, result in enumerate(results) if isinstance(result, Exception)] == [13]
        assert isinstance(results[13], QuarantinedError)
        assert it.totals["server_starts"] <= 4


async def test_a_server_that_dies_without_any_progress_ends_the_job(opened):
    """More often than server_start_max_retries; the message says so with the log."""
    flags = {"faults": json.dumps([{"action": "die", "status": 0}])}
    async with opened(model_kwargs=flags, server_start_max_retries=1) as it:
        results = await it.ask(3)
        assert all(isinstance(result, ServerExitedError) for result in results), results
        assert "exited with code 0 while it served" in str(results[0])
        assert it.totals["server_starts"] == 2
        with pytest.raises(ServerExitedError):
            await it.generate(chat("later"))


async def test_a_server_that_hangs_is_restarted(opened, tmp_path):
    """/health and /v1/models answer, but nothing moves."""
    flags = {"faults": json.dumps([{"action": "hang", "match": "doc"}]), "log_requests": str(tmp_path / "requests")}
    values = {"stall_timeout_sec": 0.8, "server_start_max_retries": 1}
    async with opened(model_kwargs=flags, **values) as it:
        await it.generate(chat("fine"))
        results = await it.ask(3)
        assert all(isinstance(result, ServerExitedError) for result in results), results
        assert "hangs: 3 requests in flight" in str(results[0])
        assert it.totals["server_starts"] >= 2


async def test_a_connection_that_a_living_server_breaks_costs_no_wait_for_its_death(opened):
    """It answers at once when asked whether it lives; only the back-off is waited for."""
    flags = {"faults": json.dumps([{"match": "doc 3 ", "action": "cut", "first": 3}])}
    async with opened(model_kwargs=flags) as it:
        begun_s = time.monotonic()
        assert not [result for result in await it.ask(6) if isinstance(result, Exception)]
        assert time.monotonic() - begun_s < 2
        assert it.totals["server_starts"] == 1


async def test_what_a_server_writes_to_its_log_decides_nothing(opened, tmp_path):
    """Lines without end, bytes that are no text, and words that look like a death, while it serves."""
    loud = textwrap.dedent("""
        import os, sys, threading
        from airflow_provider_rollout.engine.serving.dummy_app import main
        def shout():
            for _ in range(200):
                os.write(2, b"\\xff" * 100_000 + b" RuntimeError: CUDA error: device-side assert ")
        threading.Thread(target=shout, daemon=True).start()
        main(sys.argv[1:])
    """)
    command = [sys.executable, "-c", loud, "--port", "{port}", "--model", "{model}"]
    async with opened(server_type="custom", server_command=command) as it:
        for _ in range(20):
            assert not [result for result in await it.ask(20) if isinstance(result, Exception)]
        assert it.totals["server_starts"] == 1
        assert len(it.dispatcher.log_tail()) <= 8192


async def test_a_server_that_cannot_be_killed_ends_the_job_and_gets_no_neighbour(opened):
    """The guard says so by its exit code; a second server would find the GPU taken."""
    stuck = textwrap.dedent(f"""
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: os._exit({EXIT_UNKILLABLE}))
        sys.argv[1:1] = ["--faults", '[{{"match": "doc", "action": "hang"}}]']
        import airflow_provider_rollout.engine.serving.dummy_app as dummy
        dummy.signal.SIGTERM, dummy.signal.SIGINT = signal.SIGUSR1, signal.SIGUSR2
        dummy.main(sys.argv[1:])
    """)
    command = [sys.executable, "-c", stuck, "--port", "{port}", "--model", "{model}"]
    async with opened(server_type="custom", server_command=command, stall_timeout_sec=0.6) as it:
        (error,) = await it.ask(1)
        assert isinstance(error, ServerExitedError)
        assert "does not die" in str(error)
        assert it.totals["server_starts"] == 1


async def test_a_prompt_that_always_gets_500_fails_alone_and_no_server_is_restarted(opened):
    """A 500 is no death."""
    flags = {"faults": json.dumps([{"match": "doc 3 ", "action": "status", "status": 500}])}
    async with opened(model_kwargs=flags, max_request_attempts=3) as it:
        results = await it.ask(6)
        assert isinstance(results[3], RequestRejectedError)
        assert results[3].attempts == 3
        assert sum(isinstance(result, Exception) for result in results) == 1
        assert it.totals["server_starts"] == 1


async def test_one_of_two_replicas_dies_and_the_job_goes_on(opened):
    """Requests go to the other one meanwhile."""
    async with opened(replicas=2, model_kwargs={"latency_ms": 20}, max_concurrent_generations=8) as it:
        async with asyncio.timeout(5):
            while len(server_processes()) < 2:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.8)
        server_processes()[0].kill()
        assert not [result for result in await it.ask(60) if isinstance(result, Exception)]


async def test_stopping_is_bounded_whatever_the_server_does(opened, started_here):
    """It ignores SIGTERM and holds requests."""
    flags = {"ignore_sigterm": True, "faults": json.dumps([{"match": "stuck", "action": "hang"}])}
    async with opened(model_kwargs=flags) as it:
        stuck = asyncio.create_task(it.generate(chat("stuck")))
        await asyncio.sleep(0.2)
        stuck.cancel()
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 10
    assert not started_here()


async def test_a_foreign_server_is_not_taken_for_ours(opened):
    """It serves the right model, but to everybody; as would one that took our port first."""
    foreign = textwrap.dedent("""
        import http.server, sys
        class Foreign(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "m"}]}')
        http.server.HTTPServer(("127.0.0.1", int(sys.argv[5])), Foreign).serve_forever()
    """)
    values = {"server_type": "vllm", "server_command": [sys.executable, "-S", "-c", foreign]}
    async with opened(is_ready=False, server_start_timeout_sec=3, server_start_max_retries=0, **values) as it:
        with pytest.raises(ServerStartError, match="lets everybody in"):
            await it.dispatcher.wait_ready()


async def test_a_server_that_closes_its_port_but_stays_is_replaced(opened):
    """vLLM does so when its engine is gone and clients still hang on."""
    deaf = textwrap.dedent("""
        import http.server, sys, time
        class Deaf(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(404)
                self.end_headers()
            def do_POST(self):
                self.server.socket.close()
                time.sleep(600)
        http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Deaf).serve_forever()
    """)
    values = {"server_type": "custom", "server_command": [sys.executable, "-c", deaf, "{port}"]}
    async with opened(**values, stall_timeout_sec=2.4, server_start_max_retries=0) as it:
        with pytest.raises(ServerExitedError, match="has closed its port"):
            await it.generate(chat("x"))


async def test_a_custom_server_gets_its_port_and_may_serve_without_a_key(opened):
    """Placeholders are filled; the caller's list stays as it is."""
    command = [sys.executable, "-m", DUMMY, "--port", "{port}", "--host", "{host}", "--model", "{model}"]
    before = list(command)
    async with opened(server_type="custom", server_command=command) as it:
        assert (await it.generate(chat("x"))).text
        with pytest.raises(BadRequestError):
            await it.generate({**chat("x"), "model": "other"})
    assert command == before


def test_kill_9_of_the_job_leaves_no_server(tmp_path):
    """The whole way: job, guards, server."""
    job = textwrap.dedent(f"""
        import asyncio, pathlib
        from airflow_provider_rollout.engine.config import InferenceConfig
        from airflow_provider_rollout.engine.metrics import MetricsKeeper
        from airflow_provider_rollout.engine.serving.dispatch import open_dispatcher

        async def main():
            config = InferenceConfig(server_type="dummy", model_name_or_path="m", server_ready_delay_sec=0.1)
            folder = pathlib.Path({str(tmp_path)!r})
            async with open_dispatcher(config, metrics=MetricsKeeper(), log_folder=folder) as dispatcher:
                await dispatcher.wait_ready()
                print("ready", flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", job], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) == 3
        process.kill()
    _, alive = psutil.wait_procs(below, timeout=3)
    assert not alive
