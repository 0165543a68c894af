"""`make benchmark`: measures this project against its peers on the machine at hand and prints a table of ratios.

Receives: which cases, and whether a quick look is enough.        Hands on: the table; exit code 1 if a target is missed.
Invariant: numbers of different machines are not comparable, ratios of one run are. On a machine that does other work trust CPU before time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))  # tests/servers

import ranks
import real_model
import recovery
import throughput
import where
from contest import Bench, Finding
from peers import datatrove_python

CASES: dict[str, Callable[[Bench], Iterator[Finding]]] = {
    "datatrove": throughput.against_datatrove,
    "bare": throughput.against_bare_loop,
    "s3": throughput.against_bare_loop_s3,
    "resume": recovery.resume,
    "finished": recovery.finished_rank,
    "pauses": recovery.pauses,
    "import": recovery.import_time,
    "profile": where.profile,
    "ranks": ranks.simulated,
    "vllm": real_model.on_real_vllm,
    "adaptive": real_model.adaptive,
}


def main() -> int:
    """Run the cases in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the documents, one round")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, help="how often the contestants take turns; 5, or 1 with --quick")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go as their blocks end
    names = arguments.only or list(CASES)
    peers = {"datatrove": python} if "datatrove" in names and (python := datatrove_python()) else {}
    bench = Bench(0.25 if arguments.quick else 1.0, arguments.rounds or (1 if arguments.quick else 5), peers)
    console = Console()
    findings = []
    for name in names:
        began_s = time.monotonic()
        for finding in _found(name, bench):
            findings.append(finding)
            console.print(f"{finding.what}: {finding.ours} {finding.theirs} {finding.value}", style="dim")
        console.print(f"{name}: {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}", style="dim")
    console.print(_table(findings))
    return 1 if any(finding.is_met is False for finding in findings) else 0


def _found(name: str, bench: Bench) -> Iterator[Finding]:
    """The findings of one case; one that cannot run is a finding too, and the others go on."""
    try:
        yield from CASES[name](bench)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        yield Finding(name, "", "", "failed", "to run", is_met=False)


def _table(findings: list[Finding]) -> Table:
    table = Table(title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for column in ("compared with, or what", "ours", "theirs", "value", "target", ""):
        table.add_column(column, justify="left" if column.startswith("comp") else "right", no_wrap=False)
    for finding in findings:
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[finding.is_met]
        table.add_row(finding.what, finding.ours, finding.theirs, finding.value, finding.target, verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
