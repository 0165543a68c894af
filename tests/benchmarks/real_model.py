"""On a real vLLM: ours against a bare client loop at the same concurrency, and against ``vllm run-batch``.

Receives: a Bench; the folder of a vLLM that ``make test-vllm`` made, in VLLM_DIR.        Hands on: findings; none without a vLLM.
Invariant: the server is started once for the loops, and gone at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contest import HERE, ROOT, Bench, Finding, Report, bounded, fresh_folder, report_of

_IN_FLIGHT = 64
_PARAMS = {"max_tokens": 32, "ignore_eos": True, "temperature": 0.0}
_OF_BARE_LOOP = 1.05
_START_S = 300.0


def on_real_vllm(bench: Bench) -> Iterator[Finding]:
    """Total time over the same prompts, server start excluded; then the time of the batch command, start included."""
    vllm = Path(os.environ.get("VLLM_DIR", ROOT / ".cache" / "vllm")).absolute()
    if not (vllm / "complete").exists():
        yield Finding("a real vLLM", "", "", "not there (make test-vllm builds it)")
        return
    model = str(vllm / "tiny-llama")
    source = bench.documents(1_500, text_bytes=120)
    with _served(vllm, model) as url:
        times = _in_turns(bench, url, model, source)
    ours_s, bare_s = times["ours"], times["bare"]
    value = ours_s / bare_s
    yield Finding(
        f"real vLLM, {_IN_FLIGHT} in flight: total time, ours / bare loop", f"{ours_s:.1f} s", f"{bare_s:.1f} s", f"{value:.3f}",
        f"≤ {_OF_BARE_LOOP}", value <= _OF_BARE_LOOP,
    )  # fmt: skip
    batch_s = _run_batch(vllm, model, source)
    yield bounded("vllm run-batch on the same prompts, engine start included", batch_s, None, "s")


def _in_turns(bench: Bench, url: str, model: str, source: Path) -> dict[str, float]:
    flags = ["--model", model, "--in-flight", str(_IN_FLIGHT), "--params", json.dumps(_PARAMS)]
    bare = [sys.executable, str(HERE / "bare_loop.py"), url, str(source), *flags]
    report_of(bare)  # whatever is compiled at the first request is compiled now
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(bench.rounds):
        times["bare"].append(report_of(bare)["wall_s"])
        with fresh_folder() as folder:
            ours = [
                sys.executable,
                str(HERE / "our_run.py"),
                url,
                str(source),
                f"{folder}/out",
                f"{folder}/state",
                *flags,
            ]
            report: Report = report_of(ours)
            times["ours"].append(report["wall_s"])
    return {name: statistics.median(taken) for name, taken in times.items()}


def _environment(vllm: Path) -> dict[str, str]:
    own = dict(line.split("=", 1) for line in (vllm / "vllm.env").read_text().split())
    return {**os.environ, **own, "PATH": f"{vllm / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


@contextmanager
def _served(vllm: Path, model: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(vllm / "bin" / "vllm"), "serve", model, "--dtype", "bfloat16", "--max-model-len", "512"]
    command += ["--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    with fresh_folder() as folder, (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, env=_environment(vllm), start_new_session=True, cwd=folder
        )
        try:
            _wait_ready(f"http://127.0.0.1:{port}", server, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            opener.open(f"{url}/v1/models", timeout=5).close()
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _run_batch(vllm: Path, model: str, source: Path) -> float:
    with fresh_folder() as folder:
        with (folder / "in.jsonl").open("w", encoding="utf-8") as batch:
            for number, line in enumerate(source.read_text(encoding="utf-8").splitlines()):
                message = {"role": "user", "content": json.loads(line)["text"]}
                body: dict[str, Any] = {"model": model, "messages": [message], **_PARAMS}
                request = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
                batch.write(json.dumps(request) + "\n")
        command = [str(vllm / "bin" / "vllm"), "run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--model", model]
        command += ["--dtype", "bfloat16", "--max-model-len", "512", "--enforce-eager"]
        began_s = time.monotonic()
        done = subprocess.run(
            command, env=_environment(vllm), cwd=folder, capture_output=True, text=True, check=False, timeout=900
        )
        if done.returncode:
            raise RuntimeError(f"vllm run-batch ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return time.monotonic() - began_s
