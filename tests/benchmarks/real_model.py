"""On a real vLLM: ours against a bare client loop at the same concurrency, against ``vllm run-batch``, and against the best window.

Receives: a Bench; the folder of a vLLM that ``make test-vllm`` made, in VLLM_DIR.        Hands on: findings; none without a vLLM.
Invariants: the server is started once for the loops, and gone at the end. It shares the machine with its clients, so a client's CPU is
taken from it, as that beside a GPU is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contest import HERE, ROOT, Bench, Finding, Report, bounded, fresh_folder, judged, medians, report_of

_IN_FLIGHT = 64
_DOCUMENTS = 3_000  # half a minute of work or more, beside which the start and the end of a job are small
_CEILING, _ADMITTED = 512, 64
_ROUNDS_OF_WINDOWS = 3  # five ways in each: it would be the longest of all cases
_PARAMS = {"max_tokens": 32, "ignore_eos": True, "temperature": 0.0}
_OF_BARE_LOOP, _OF_BEST_WINDOW = 1.05, 0.9
_START_S = 300.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_COUNTER = re.compile(r"^vllm:(e2e_request_latency_seconds_sum|generation_tokens_total)\{[^}]*\} (\S+)", re.MULTILINE)


def on_real_vllm(bench: Bench) -> Iterator[Finding]:
    """Total time over the same prompts, from opening the input to the manifest; the server's start and imports are not in it.

    Then the batch command, with its engine's start.
    """
    vllm = _folder()
    if vllm is None:
        yield _MISSING
        return
    source = bench.documents(_DOCUMENTS, text_bytes=120)
    with _served(vllm) as url:
        report_of(_bare(url, vllm, _first(bench)))
        taken: dict[str, list[Report]] = {"bare": [], "ours": []}
        for _ in range(bench.rounds):
            taken["bare"].append(_observed(url, _bare(url, vllm, source)))
            with fresh_folder() as folder:
                taken["ours"].append(_observed(url, _ours(url, vllm, source, folder, "--in-flight", str(_IN_FLIGHT))))
        beside = [_side_by_side(url, vllm, source) for _ in range(bench.rounds)]
    ours, bare = medians(taken["ours"]), medians(taken["bare"])
    label = f"real vLLM, {_IN_FLIGHT} in flight, {ours['requests']:.0f} answers of {_PARAMS['max_tokens']} tokens"
    yield _at_most(f"{label}: total time, ours / bare loop", ours["wall_s"], bare["wall_s"], _OF_BARE_LOOP)
    yield _at_most(f"{label}: first call to last answer", ours["calls_s"], bare["calls_s"], None)
    apart = statistics.median(beside)
    yield Finding(
        f"real vLLM, both at once, {_IN_FLIGHT // 2} in flight each: first call to last answer", value=f"{apart:.3f}"
    )
    for name, what in (("before_s", "before the first call"), ("after_s", "after the last answer")):
        yield Finding(f"{label}: {what}", f"{ours[name]:.2f} s", f"{bare[name]:.2f} s")
    yield judged(
        f"{label}: tokens/s",
        f"{ours['tokens_per_s']:.0f}/s",
        f"{bare['tokens_per_s']:.0f}/s",
        ours["tokens_per_s"] / bare["tokens_per_s"],
        None,
    )
    yield Finding(f"{label}: requests at the server, mean", f"{ours['at_server']:.1f}", f"{bare['at_server']:.1f}")
    yield Finding(f"{label}: CPU of the client per request", f"{ours['cpu_ms']:.2f} ms", f"{bare['cpu_ms']:.2f} ms")
    yield bounded("vllm run-batch on the same prompts, engine start included", _run_batch(vllm, source), None, "s")


def _side_by_side(url: str, vllm: Path, source: Path) -> float:
    """Ours / bare loop when both ask the same server at the same time, so that nothing else on the machine can favour one."""
    in_flight = _IN_FLIGHT // 2
    with fresh_folder() as folder, ThreadPoolExecutor(2) as both:
        bare = both.submit(report_of, _bare(url, vllm, source, in_flight))
        ours = both.submit(report_of, _ours(url, vllm, source, folder, "--in-flight", str(in_flight)))
        return ours.result()["calls_s"] / bare.result()["calls_s"]


def adaptive(bench: Bench) -> Iterator[Finding]:
    """The window that adaptive_concurrency finds, from nothing, against fixed ones on the same server.

    Once on a server that queues whatever comes, where wider is never worse; once on one that refuses what it cannot soon do (503).
    """
    vllm = _folder()
    if vllm is None:
        yield _MISSING
        return
    yield from _against_windows(bench, vllm, "that queues all", {4: 320, 16: 1_280, 64: _DOCUMENTS, 256: _DOCUMENTS})
    limit = ("--max-num-queued-reqs", str(_ADMITTED))
    windows = {_ADMITTED // 4: 1_280, _ADMITTED // 2: _DOCUMENTS, _ADMITTED - 4: _DOCUMENTS}
    yield from _against_windows(bench, vllm, f"that admits {_ADMITTED}", windows, *limit)


def _against_windows(
    bench: Bench, vllm: Path, which: str, windows: Mapping[int, int], *server_flags: str
) -> Iterator[Finding]:
    """Fixed windows, each with so many documents, for a narrow one is slow and shows it soon; then the adaptive one."""
    ways = {f"{window}": (few, ["--in-flight", f"{window}"]) for window, few in windows.items()}
    ways["adaptive"] = (_DOCUMENTS, ["--in-flight", f"{_CEILING}", "--adaptive"])
    taken: dict[str, list[Report]] = {name: [] for name in ways}
    with _served(vllm, *server_flags) as url:
        report_of(_bare(url, vllm, _first(bench), in_flight=16))
        for _ in range(min(bench.rounds, _ROUNDS_OF_WINDOWS)):
            for name, (few, flags) in ways.items():
                source = bench.documents(few, 120, at_least=few // 4)
                with fresh_folder() as folder:
                    taken[name].append(_observed(url, _ours(url, vllm, source, folder, *flags)))
    rates = {name: medians(reports)["tokens_per_s"] for name, reports in taken.items()}
    mine = rates.pop("adaptive")
    for name, rate in rates.items():
        yield Finding(f"real vLLM {which}, window {name}: tokens/s", f"{rate:.0f}/s")
    best = max(rates, key=lambda name: rates[name])
    label = f"real vLLM {which}, adaptive_concurrency from 8 to {_CEILING}, against the best window ({best}): tokens/s"
    yield judged(label, f"{mine:.0f}/s", f"{rates[best]:.0f}/s", mine / rates[best], _OF_BEST_WINDOW)


_MISSING = Finding("a real vLLM", "", "", "not there (make test-vllm builds it)")


def _first(bench: Bench) -> Path:
    """Documents to warm up with: whatever is compiled at the first requests is compiled then."""
    return bench.documents(300, 120, at_least=300)


def _folder() -> Path | None:
    folder = Path(os.environ.get("VLLM_DIR", ROOT / ".cache" / "vllm")).absolute()
    return folder if (folder / "complete").exists() else None


def _model(vllm: Path) -> str:
    return str(vllm / "tiny-llama")


def _flags(vllm: Path) -> list[str]:
    return ["--model", _model(vllm), "--params", json.dumps(_PARAMS)]


def _bare(url: str, vllm: Path, source: Path, in_flight: int = _IN_FLIGHT) -> list[str]:
    flags = [*_flags(vllm), "--in-flight", str(in_flight)]
    return [sys.executable, str(HERE / "bare_loop.py"), url, str(source), *flags]


def _ours(url: str, vllm: Path, source: Path, folder: Path, *flags: str) -> list[str]:
    places = [f"{folder}/out", f"{folder}/state"]
    return [sys.executable, str(HERE / "our_run.py"), url, str(source), *places, *_flags(vllm), *flags]


def _observed(url: str, command: list[str]) -> Report:
    """The contestant's report, and what the server's own counters say of the same time."""
    before = _counters(url)
    report = report_of(command)
    grown = {name: value - before[name] for name, value in _counters(url).items()}
    report["at_server"] = grown["e2e_request_latency_seconds_sum"] / report["calls_s"]
    report["tokens_per_s"] = grown["generation_tokens_total"] / report["calls_s"]
    report["after_s"] = report["wall_s"] - report["before_s"] - report["calls_s"]
    return report


def _counters(url: str) -> dict[str, float]:
    text = _OPENER.open(f"{url}/metrics", timeout=10).read().decode()
    return {name: float(value) for name, value in _COUNTER.findall(text)}


def _at_most(what: str, ours_s: float, bare_s: float, at_most: float | None) -> Finding:
    value = ours_s / bare_s
    target, is_met = ("", None) if at_most is None else (f"≤ {at_most}", value <= at_most)
    return Finding(what, f"{ours_s:.1f} s", f"{bare_s:.1f} s", f"{value:.3f}", target, is_met)


def _environment(vllm: Path) -> dict[str, str]:
    own = dict(line.split("=", 1) for line in (vllm / "vllm.env").read_text().split())
    return {**os.environ, **own, "PATH": f"{vllm / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


@contextmanager
def _served(vllm: Path, *flags: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(vllm / "bin" / "vllm"), "serve", _model(vllm), "--dtype", "bfloat16", "--max-model-len", "512"]
    command += ["--enforce-eager", "--host", "127.0.0.1", "--port", str(port), *flags]
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
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            _OPENER.open(f"{url}/v1/models", timeout=5).close()
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _run_batch(vllm: Path, source: Path) -> float:
    model = _model(vllm)
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
