"""Our runner as a contestant, request cache and checkpoints on: there is no way to turn them off.

Receives: the arguments of measured.py, URIs of output and state; ROLLOUT_STORE_OPTIONS for S3.
Hands on: its report, with the pauses of the event loop and the CPU of each thread if asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from measured import Span, ThreadClock, contestant_parser, measured, payload_of, profiled

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, ParquetWriter

_TICK_S, _THREADS_S = 0.005, 0.25
_SPAN = Span()


async def rollout(document: Document, generate: Any) -> Any:
    """One call per rollout."""
    _SPAN.called()
    answer = await generate(payload_of(document.text))
    _SPAN.answered()
    return answer


async def dialogue(document: Document, generate: Any, *, turns: Turns) -> Any:
    """One call per turn; each but the first goes on from the answer before it."""
    payload = payload_of(document.text)
    for _ in range(turns.per_rollout):
        answer = await generate(payload)
        turns.count()
        said = {"role": "assistant", "content": answer.text}
        payload = {"messages": [*payload["messages"][:1], said, {"role": "user", "content": "Go on."}]}
    return answer


class Turns:
    """Calls that were answered, by a server or from the cache.

    Args:
        per_rollout: calls of each rollout.
        told_at: prints a line when so many calls of all rollouts have been answered; 0 for never.
    """

    def __init__(self, per_rollout: int, told_at: int) -> None:
        self.per_rollout = per_rollout
        self._missing = told_at

    def count(self) -> None:
        """One more."""
        self._missing -= 1
        if self._missing == 0:
            print(json.dumps({"told_at_s": time.monotonic()}), flush=True)


async def watch_pauses(pauses_s: list[float]) -> None:
    """Note by how much each short sleep is late: so long was the loop busy with something else."""
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        pauses_s.append(time.perf_counter() - due_s)


async def watch_threads(clock: ThreadClock) -> None:
    """Take the threads' time now and then: those of the runner end before it does."""
    while True:
        await asyncio.sleep(_THREADS_S)
        clock.look()


def make_runner(arguments: argparse.Namespace) -> InferenceRunner:
    """The runner that the arguments describe."""
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=arguments.url,
        model_name_or_path=arguments.model,
        max_concurrent_generations=arguments.in_flight,
        max_concurrent_documents=arguments.documents,
        adaptive_concurrency=arguments.adaptive,
        rollouts_per_document=arguments.rollouts,
        default_generation_params=arguments.params,
    )
    turns = arguments.turns
    return InferenceRunner(
        rollout if turns == 1 else dialogue,
        config,
        ParquetWriter(arguments.output),
        shared_context=None if turns == 1 else {"turns": Turns(turns, arguments.tell_at)},
        checkpoints_dir=arguments.state,
        records_per_chunk=arguments.records_per_chunk,
    )


async def run(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    """Run the rank."""
    pauses_s: list[float] = []
    clock = ThreadClock()
    watching = [asyncio.create_task(watch_pauses(pauses_s))] if arguments.pauses else []
    watching += [asyncio.create_task(watch_threads(clock))] if arguments.threads else []
    manifest = await make_runner(arguments).run_async([arguments.source])
    for task in watching:
        task.cancel()
    if pauses_s:
        pauses_s.sort()
        report["pause_p50_ms"] = 1000 * pauses_s[len(pauses_s) // 2]
        report["pause_p99_ms"] = 1000 * pauses_s[len(pauses_s) * 99 // 100]
        report["pause_max_ms"] = 1000 * pauses_s[-1]
    report |= _SPAN.report()
    report |= {f"thread {name}": cpu_s for name, cpu_s in clock.cpu_s().items()}
    report["requests"] = manifest.requests_sent
    report["documents"] = manifest.documents_written


if __name__ == "__main__":
    parser = contestant_parser()
    parser.add_argument("output")
    parser.add_argument("state")
    parser.add_argument("--records-per-chunk", type=int, default=6000)
    parser.add_argument("--documents", type=int, help="documents in flight")
    parser.add_argument("--adaptive", action="store_true", help="--in-flight is the ceiling")
    parser.add_argument("--turns", type=int, default=1, help="calls per rollout, one after the other")
    parser.add_argument("--tell-at", type=int, default=0, help="tell when so many calls were answered")
    parser.add_argument("--pauses", action="store_true", help="report by how much the event loop was late")
    parser.add_argument("--threads", action="store_true", help="report the CPU of each kind of thread")
    options = parser.parse_args()
    with measured() as measures, profiled(options.profile):
        asyncio.run(run(options, measures))
