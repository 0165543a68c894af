"""Runs contestants in turns (A B A B …), each in a process of its own, and takes the medians.

Receives: commands by name.        Hands on: medians of what they reported; findings, which the table shows.
Invariants: all contestants of a round meet the same server; every server and every folder is gone when its block ends.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "bench"

Report = dict[str, float]
Command = Callable[[str, Path], list[str]]
"""From the server's URL and a fresh folder to the command of one contestant."""


@dataclass(frozen=True)
class Finding:
    """One row of the table.

    Attributes:
        what: the comparison.
        ours: our number, with its unit.
        theirs: the peer's, or "".
        value: what is judged: a ratio, seconds, milliseconds.
        target: "≥ 0.55", "≤ 8 s" …; "" where nothing was promised.
        is_met: whether it is; None where there is no target.
    """

    what: str
    ours: str = ""
    theirs: str = ""
    value: str = ""
    target: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Bench:
    """How much is measured.

    Attributes:
        scale: 1.0, or less for a quick look.
        rounds: how often the contestants take turns.
        peers: the Python of each peer that could be set up.
    """

    scale: float
    rounds: int
    peers: Mapping[str, str] = field(default_factory=dict)

    def documents(self, count: int, text_bytes: int = 1850, at_least: int = 1_500) -> Path:
        """A JSONL file of that many documents at full scale, and never so few that the start outweighs the rest; made once."""
        count = max(at_least, int(count * self.scale))
        path = CACHE / f"documents-{count}-{text_bytes}.jsonl"
        if not path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            chooser = random.Random(0)
            words = [f"{chooser.randrange(16**6):06x}"[: chooser.randrange(3, 9)] for _ in range(3000)]
            with path.with_suffix(".part").open("w", encoding="utf-8") as out:
                for number in range(count):
                    text = " ".join(chooser.choices(words, k=text_bytes // 6))
                    out.write(json.dumps({"id": f"d{number}", "text": text, "language": "en"}) + "\n")
            path.with_suffix(".part").rename(path)
        return path


class Server:
    """The static server in its process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stats(self) -> dict[str, Any]:
        """How many POSTs it saw, and when the first one came."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        stats: dict[str, Any] = json.load(opener.open(f"{self.url}/stats"))
        return stats


@contextmanager
def static_server(delay_s: float = 0.0, answered: float = float("inf")) -> Iterator[Server]:
    """Run it for as long as the block; requests beyond ``answered`` hang."""
    command = [sys.executable, str(HERE / "static_server.py"), str(delay_s), str(answered)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        process.communicate()  # closes its standard input, at which it ends


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder that is gone after the block."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report_of(command: list[str], environment: Mapping[str, str] | None = None) -> Report:
    """Run one contestant to its end.

    Raises:
        RuntimeError: it failed; the message holds the end of what it said.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    report: Report = json.loads(done.stdout.splitlines()[-1])
    if report.get("requests"):
        report["per_s"] = report["requests"] / report["wall_s"]
        for name in ("cpu", "loop_cpu"):
            report[f"{name}_ms"] = 1000 * report[f"{name}_s"] / report["requests"]
    return report


def take_turns(
    bench: Bench, contestants: Mapping[str, Command], *, environment: Mapping[str, str] | None = None
) -> dict[str, Report]:
    """Let the contestants run in turns; the medians of what each reported."""
    reports: dict[str, list[Report]] = {name: [] for name in contestants}
    with static_server() as server:
        for _ in range(bench.rounds):
            for name, command in contestants.items():
                with fresh_folder() as folder:
                    reports[name].append(report_of(command(server.url, folder), environment))
    return {name: medians(taken) for name, taken in reports.items()}


def medians(reports: Sequence[Report]) -> Report:
    """The median of each number."""
    return {key: statistics.median(report.get(key, 0.0) for report in reports) for key in reports[0]}


def judged(what: str, ours: str, theirs: str, ratio: float, at_least: float | None) -> Finding:
    """A row about a ratio."""
    target = "" if at_least is None else f"≥ {at_least:g}"
    return Finding(what, ours, theirs, f"{ratio:.2f}", target, None if at_least is None else ratio >= at_least)


def bounded(what: str, value: float, at_most: float | None, unit: str) -> Finding:
    """A row about a number that should be small."""
    target = "" if at_most is None else f"≤ {at_most:g} {unit}"
    shown = f"{value:.1f} {unit}"
    return Finding(what, shown, "", shown, target, None if at_most is None else value <= at_most)
