"""What every contestant shares: its arguments, the request it makes of a document, and the report of what it cost.

Receives: a command line; a block of work.        Hands on: one JSON line on stdout, for the script that started the process.
Invariants: imports are outside the block; threads count, child processes do not. Imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def contestant_parser() -> argparse.ArgumentParser:
    """The arguments that all contestants take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("source", help="a JSONL file with a text per line")
    parser.add_argument("--model", default="m")
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--rollouts", type=int, default=1)
    parser.add_argument("--params", type=json.loads, default={"max_tokens": 600, "temperature": 0.7})
    return parser


def payload_of(text: str) -> dict[str, Any]:
    """The request that every contestant makes of a document; its parameters and the model come on top."""
    return {"messages": [{"role": "user", "content": text}]}


@contextmanager
def measured() -> Iterator[dict[str, Any]]:
    """Measure the block and print the result; what the block puts into the dict is printed too."""
    report: dict[str, Any] = {}
    before, began_s, loop_began_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), time.thread_time()
    yield report
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    own = {"wall_s": wall_s, "cpu_s": cpu_s, "loop_cpu_s": time.thread_time() - loop_began_s}
    print(json.dumps({**own, "peak_mb": after.ru_maxrss / 1024, **report}), flush=True)
