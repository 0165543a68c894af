"""Requests per second and CPU per request: ours against datatrove's runner and against a bare aiohttp loop.

Receives: a Bench.        Hands on: findings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from contest import HERE, Bench, Command, Finding, Report, fresh_folder, judged, take_turns
from servers.seaweedfs import run_seaweedfs

_OF_BARE_LOOP, _OF_BARE_LOOP_S3 = 0.55, 0.50
_OF_DATATROVE, _CPU_OF_DATATROVE = 10.0, 9.0


def ours(source: Path, *, in_flight: int, rollouts: int = 1, bucket: str | None = None) -> Command:
    """Our runner, with its output and state in a folder or in a bucket."""

    def command(url: str, folder: Path) -> list[str]:
        place = f"s3://{bucket}/{folder.name}" if bucket else str(folder)
        flags = ["--in-flight", str(in_flight), "--rollouts", str(rollouts)]
        return [sys.executable, str(HERE / "our_run.py"), url, str(source), f"{place}/out", f"{place}/state", *flags]

    return command


def bare_loop(source: Path, *, in_flight: int, rollouts: int = 1) -> Command:
    """The bare client loop."""
    flags = ["--in-flight", str(in_flight), "--rollouts", str(rollouts)]
    return lambda url, _folder: [sys.executable, str(HERE / "bare_loop.py"), url, str(source), *flags]


def datatrove(python: str, source: Path, *, in_flight: int, rollouts: int, checkpoints: bool) -> Command:
    """datatrove's runner."""
    flags = ["--in-flight", str(in_flight), "--rollouts", str(rollouts), *([] if checkpoints else ["--no-checkpoints"])]
    return lambda url, folder: [python, str(HERE / "datatrove_run.py"), url, str(source), str(folder), *flags]


def against_datatrove(bench: Bench) -> Iterator[Finding]:
    """Cache and checkpoints on at both, and off at the peer; it gets fewer documents, for it is compared by its rate."""
    python = bench.peers.get("datatrove")
    if python is None:
        yield Finding("datatrove's runner", "", "", "not installed")
        return
    for in_flight, rollouts, many, few in (
        (500, 1, 20_000, 2_000),
        (64, 1, 12_000, 2_000),
        (1, 1, 3_000, 500),
        (500, 8, 2_500, 250),
    ):
        source, less = bench.documents(many), bench.documents(few, at_least=250)
        contestants = {
            "ours": ours(source, in_flight=in_flight, rollouts=rollouts),
            "on": datatrove(python, less, in_flight=in_flight, rollouts=rollouts, checkpoints=True),
            "off": datatrove(python, less, in_flight=in_flight, rollouts=rollouts, checkpoints=False),
        }
        is_judged = (in_flight, rollouts) == (500, 1)
        if not is_judged:
            del contestants["off"]
        taken = take_turns(bench, contestants)
        mine = taken.pop("ours")
        for name, peer in taken.items():
            targets = (_OF_DATATROVE, _CPU_OF_DATATROVE) if is_judged and name == "on" else (None, None)
            yield from _compared(f"datatrove, checkpoints {name}, {_how(in_flight, rollouts)}", mine, peer, *targets)


def _how(in_flight: int, rollouts: int) -> str:
    return f"{in_flight} in flight" + (f", {rollouts} rollouts each" if rollouts > 1 else "")


def against_bare_loop(bench: Bench) -> Iterator[Finding]:
    """State in a folder: 1, 64 and 500 in flight, and 8 rollouts per document."""
    for in_flight, count, rollouts in ((500, 20_000, 1), (64, 12_000, 1), (1, 3_000, 1), (500, 2_500, 8)):
        source = bench.documents(count)
        taken = take_turns(
            bench,
            {
                "ours": ours(source, in_flight=in_flight, rollouts=rollouts),
                "bare": bare_loop(source, in_flight=in_flight, rollouts=rollouts),
            },
        )
        label = f"bare aiohttp loop, {_how(in_flight, rollouts)}"
        target = _OF_BARE_LOOP if (in_flight, rollouts) == (500, 1) else None
        yield from _compared(label, taken["ours"], taken["bare"], target, None)


def against_bare_loop_s3(bench: Bench) -> Iterator[Finding]:
    """Output and state on a real S3 server, which takes its share of the same machine."""
    source = bench.documents(20_000)
    with fresh_folder() as folder, run_seaweedfs(folder) as server:
        taken = take_turns(
            bench,
            {
                "ours": ours(source, in_flight=500, bucket=server.new_bucket()),
                "bare": bare_loop(source, in_flight=500),
            },
            environment=server.environment(),
        )
    yield from _compared(
        "bare aiohttp loop, 500 in flight, state on S3", taken["ours"], taken["bare"], _OF_BARE_LOOP_S3, None
    )


def _compared(
    label: str, mine: Report, peer: Report, rate_target: float | None, cpu_target: float | None
) -> Iterator[Finding]:
    yield judged(
        f"{label}: throughput",
        f"{mine['per_s']:.0f}/s",
        f"{peer['per_s']:.0f}/s",
        mine["per_s"] / peer["per_s"],
        rate_target,
    )
    yield judged(
        f"{label}: CPU per request, theirs / ours",
        f"{mine['cpu_ms']:.3f} ms",
        f"{peer['cpu_ms']:.3f} ms",
        peer["cpu_ms"] / mine["cpu_ms"],
        cpu_target,
    )
    yield Finding(
        f"{label}: CPU of the event loop's thread", f"{mine['loop_cpu_ms']:.3f} ms", f"{peer['loop_cpu_ms']:.3f} ms",
        f"{peer['loop_cpu_ms'] / mine['loop_cpu_ms']:.2f}",
    )  # fmt: skip
    yield Finding(f"{label}: peak memory", f"{mine['peak_mb']:.0f} MB", f"{peer['peak_mb']:.0f} MB")
