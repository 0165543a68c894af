"""Where the time of a request goes: the event loop's thread by room and library, ours beside the bare loop's; then the other threads.

Receives: a Bench.        Hands on: findings in milliseconds of CPU per request, which add up to what an unprofiled run costs.
Invariants: shares are cProfile's, which makes calls of Python functions dearer than they are; the sum is not its, but the unprofiled run's.
Where a call into C gives up the interpreter's lock, as every send and receive does, its share holds the wait for getting it back from
another thread. Waiting in poll is no work and left out.
"""

from __future__ import annotations

import pstats
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from contest import Bench, Finding, Report, fresh_folder, report_of, static_server, take_turns
from throughput import bare_loop, ours

_IN_FLIGHT = 500
_PACKAGE = re.compile(r"airflow_provider_rollout/(?:engine/)?(.+)\.py$")
_LIBRARY = re.compile(r"site-packages/(\w+)")
_LEAST_MS = 0.002


def profile(bench: Bench) -> Iterator[Finding]:
    """Two unprofiled runs for the sums, two profiled ones for the shares."""
    source = bench.documents(20_000)
    contestants = {"ours": ours(source, in_flight=_IN_FLIGHT), "bare": bare_loop(source, in_flight=_IN_FLIGHT)}
    threads = {**contestants, "ours": lambda url, folder: [*contestants["ours"](url, folder), "--threads"]}
    taken = take_turns(bench, threads)
    shares: dict[str, Counter[str]] = {}
    with static_server() as server:
        for name, command in contestants.items():
            with fresh_folder() as folder:
                report_of([*command(server.url, folder), "--profile", str(folder / "profile")])
                shares[name] = _groups(folder / "profile")
    yield from _loop(taken["ours"], taken["bare"], shares)
    yield from _threads(taken["ours"])


def _loop(mine: Report, bare: Report, shares: dict[str, Counter[str]]) -> Iterator[Finding]:
    scale = {name: report["loop_cpu_ms"] / shares[name].total() for name, report in (("ours", mine), ("bare", bare))}
    yield Finding("time of the run, per request", f"{1000 / mine['per_s']:.3f} ms", f"{1000 / bare['per_s']:.3f} ms")
    yield Finding(
        "CPU of the event loop's thread, per request", f"{mine['loop_cpu_ms']:.3f} ms", f"{bare['loop_cpu_ms']:.3f} ms"
    )
    ours_small_ms = bare_small_ms = 0.0
    for group, _ in (shares["ours"] + shares["bare"]).most_common():
        ours_ms, bare_ms = (shares[name][group] * scale[name] for name in ("ours", "bare"))
        if max(ours_ms, bare_ms) >= _LEAST_MS:
            yield Finding(f"… {group}", f"{ours_ms:.3f} ms", f"{bare_ms:.3f} ms" if bare_ms else "")
        else:
            ours_small_ms, bare_small_ms = ours_small_ms + ours_ms, bare_small_ms + bare_ms
    yield Finding("… all else", f"{ours_small_ms:.3f} ms", f"{bare_small_ms:.3f} ms")


def _threads(mine: Report) -> Iterator[Finding]:
    costs = {name.removeprefix("thread "): cost for name, cost in mine.items() if name.startswith("thread ")}
    for name, cost_s in sorted(costs.items(), key=lambda item: -item[1]):
        cost_ms = 1000 * cost_s / mine["requests"]
        if name != "MainThread" and cost_ms >= _LEAST_MS:
            yield Finding(f"threads {name!r}, per request", f"{cost_ms:.3f} ms")


def _groups(path: Path) -> Counter[str]:
    """Seconds within functions of each group, without what they called."""
    groups: Counter[str] = Counter()
    for (file, _, function), (_, _, own_s, _, _) in pstats.Stats(str(path)).stats.items():  # type: ignore[attr-defined]
        if "select.epoll" not in function:
            groups[_group(file, function)] += own_s
    return groups


def _group(file: str, function: str) -> str:
    if room := _PACKAGE.search(file):
        return f"room {room.group(1)}"
    if library := _LIBRARY.search(file):
        return f"library {library.group(1)}"
    for words, name in (
        (("socket", "_ssl"), "sockets: send, receive"),
        (("msgspec", "orjson", "_json", "encode of", "decode of"), "JSON in C: msgspec, orjson"),
        (("openssl_sha", "HASH", "_hashlib"), "SHA-256"),
        (("sqlite3",), "SQLite"),
        (("_asyncio", "Context"), "asyncio, tasks and futures in C"),
    ):
        if any(word in function for word in words):
            return name
    if file == "~":
        return "Python's builtins"
    return (
        "asyncio"
        if "/asyncio/" in file
        else "Python's library, but for asyncio"
        if "/python" in file
        else f"benchmark {Path(file).name}"
    )
