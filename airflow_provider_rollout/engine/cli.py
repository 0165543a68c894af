"""``airflow-rollout``: one rollout job from a shell, and a look at what jobs have done. Launchers start jobs with it too.

Receives: arguments.        Hands on: a JobSpec to the job; tables or JSON to standard output; an exit code.
Invariants: defaults live in config.py alone: a flag that is not given is not passed on. An error that the engine raises on purpose is
one message on standard error; only a bug shows a traceback. Exit codes are those of exceptions.py.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console, Group
from rich.live import Live

from airflow_provider_rollout.engine import exceptions, run_report
from airflow_provider_rollout.engine.config import (
    FailureBudget,
    InferenceConfig,
    JobSpec,
    ReaderConfig,
    job_spec_from_bytes,
)
from airflow_provider_rollout.engine.exceptions import ConfigError, RolloutError
from airflow_provider_rollout.engine.job import run_job
from airflow_provider_rollout.engine.progress_bar import show_progress
from airflow_provider_rollout.engine.run_state import RankStatus, RunState, Watch
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

__all__ = ["leave", "main", "program"]

_LOOK_EVERY_S = 2.0
_WAIT_S = 12.0  # two heartbeats: a rank that does not move in this time is not at work, or only just
_PIPE_COLUMNS = 160  # a pipe has no width of its own
_BUDGET = ("max_failed", "max_failed_share", "max_consecutive_failures")
_READER = ("text_field", "id_field", "on_bad_row")
_CONFIG = {"server_type": "server_type", "model": "model_name_or_path", "endpoint_url": "endpoint_url"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = vars(_parser().parse_args(arguments))
    command = given.pop("command")
    try:
        return int(command(given))
    except RolloutError as error:
        print(f"airflow-rollout: {type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return exceptions.EXIT_INTERRUPTED_BY_USER


def program() -> NoReturn:
    """Be the process of the command."""
    leave(main())


def leave(code: int) -> NoReturn:
    """End the process without waiting for threads.

    A store that hangs may hold a thread for minutes, and a job that was told to stop must be gone within its bound. The interpreter
    joins threads before it calls what is registered with atexit, so these are called here.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - it has no public name
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-rollout",
        description="Run a model over a dataset; stopped anywhere, the same command goes on where it stopped.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 75 another attempt is at work, 130 or 143 interrupted and resumable.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run one rank", argument_default=argparse.SUPPRESS))
    uri = argparse.ArgumentParser(add_help=False)
    uri.add_argument("uri", metavar="URI", help="the run's output, or its checkpoints if they are elsewhere")

    status = commands.add_parser("status", parents=[uri], help="how every rank stands")
    status.add_argument(
        "--watch", action="store_true", help="go on until every rank has ended; exit 0 if all succeeded, else 1"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--wait",
        type=float,
        default=_WAIT_S,
        metavar="SECONDS",
        help="how long to look for heartbeats at most (default: %(default)g)",
    )
    status.set_defaults(command=_status)

    report = commands.add_parser(
        "report", parents=[uri], help="what was written, what failed and why, and every attempt"
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.set_defaults(command=_report)

    clean = commands.add_parser(
        "clean", parents=[uri], help="remove a run's state, so that it begins anew; refuses while a job is at work"
    )
    clean.add_argument("--output", action="store_true", help="remove the output too")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    clean.set_defaults(command=_clean)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_run)
    parser.add_argument("--spec", metavar="URI", help="a stored job spec; no other flag goes with it")
    data = parser.add_argument_group("data")
    data.add_argument("--source", action="append", metavar="URI", help="shard, glob or folder; may be repeated")
    data.add_argument("--output", metavar="URI")
    data.add_argument("--checkpoints", metavar="URI", help="default: OUTPUT/_rollout")
    data.add_argument("--text-field", metavar="NAME")
    data.add_argument("--id-field", metavar="NAME")
    data.add_argument("--on-bad-row", choices=["fail", "skip"])
    data.add_argument("--output-format", choices=["parquet", "jsonl", "jsonl.zst"])
    data.add_argument("--metadata-key", metavar="NAME", help="the column that holds the results")
    data.add_argument("--records-per-chunk", type=int, metavar="N")
    data.add_argument("--rank", type=int, metavar="N")
    data.add_argument("--world-size", type=int, metavar="N")
    ask = parser.add_argument_group("what is asked")
    ask.add_argument("--rollout", metavar="MODULE:FUNCTION", help="or /path/file.py:function")
    ask.add_argument("--rollout-kwargs", type=_json_object, metavar="JSON")
    ask.add_argument("--shared-context", metavar="MODULE:NAME")
    ask.add_argument("--prompt-template", metavar="TEXT")
    ask.add_argument("--system-prompt", metavar="TEXT")
    model = parser.add_argument_group("the model")
    model.add_argument("--config", metavar="FILE.json", help="the fields of InferenceConfig; or the JSON object itself")
    model.add_argument(
        "--server-type", metavar="TYPE", help="vllm, sglang, endpoint, custom or dummy; outweighs --config"
    )
    model.add_argument("--model", metavar="NAME", help="model_name_or_path; outweighs --config")
    model.add_argument("--endpoint-url", action="append", metavar="URL", help="may be repeated; outweighs --config")
    failures = parser.add_argument_group("failures and changes")
    failures.add_argument("--max-failed", type=int, metavar="N")
    failures.add_argument("--max-failed-share", type=float, metavar="X")
    failures.add_argument("--max-consecutive-failures", type=int, metavar="N")
    failures.add_argument("--retry-failed", action="store_true")
    failures.add_argument("--on-config-change", choices=["refuse", "restart"])


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def _run(given: dict[str, Any]) -> int:
    spec = _stored_spec(given) if "spec" in given else _spec_of_flags(given)
    with show_progress() as show:
        manifest = asyncio.run(run_job(spec, on_progress=show))
    print(run_report.summary_line(manifest))
    return exceptions.EXIT_DONE


def _stored_spec(given: dict[str, Any]) -> JobSpec:
    uri = given.pop("spec")
    if given:
        raise ConfigError(f"--spec holds the whole job; remove {', '.join(_flag(name) for name in given)}")
    folder, _, key = uri.rpartition("/")
    store = ObjectStore.open(folder or ("/" if uri.startswith("/") else "."), make_folder=False)
    return job_spec_from_bytes(asyncio.run(store.get(key)))


def _spec_of_flags(given: dict[str, Any]) -> JobSpec:
    for name in ("source", "output"):
        if name not in given:
            raise ConfigError(f"{_flag(name)} is missing (or give --spec)")
    config = _config(given.pop("config", None)) | {
        field: given.pop(flag) for flag, field in _CONFIG.items() if flag in given
    }
    if not config:
        raise ConfigError("--config is missing; or give --server-type and --model")
    budget = {name: given.pop(name) for name in _BUDGET if name in given}
    reader = {name: given.pop(name) for name in _READER if name in given}
    sys.path.append(str(Path.cwd()))  # --rollout module:function finds a file that lies here
    return JobSpec(
        job_id=f"cli-{uuid.uuid4().hex[:12]}",
        config=InferenceConfig.from_dict(config),
        failure_budget=FailureBudget(**budget),
        reader=ReaderConfig(**reader),
        **given,
    )


def _config(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return _json_object(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"--config {text}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _status(given: dict[str, Any]) -> int:
    return asyncio.run(_watch(given["uri"], watch=given["watch"], as_json=given["json"], wait_s=given["wait"]))


async def _watch(uri: str, *, watch: bool, as_json: bool, wait_s: float) -> int:
    state = await RunState.find(uri)
    eyes = Watch(state)
    ranks = await eyes.look()
    deadline_s = time.monotonic() + wait_s
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while not _is_enough(ranks, watch=watch, waited=time.monotonic() >= deadline_s):
            if not as_json:
                live.update(run_report.status_table(state.store.uri, ranks), refresh=True)
            await asyncio.sleep(_LOOK_EVERY_S if watch else min(_LOOK_EVERY_S, wait_s))
            ranks = await eyes.look()
    if as_json:
        print(json.dumps(run_report.status(state.store.uri, ranks)))
    else:
        _print(run_report.status_table(state.store.uri, ranks))
    all_succeeded = all(rank.progress.verdict == "succeeded" for rank in ranks)
    return exceptions.EXIT_DONE if all_succeeded or not watch else exceptions.EXIT_FAILED


def _is_enough(ranks: list[RankStatus], *, watch: bool, waited: bool) -> bool:
    if watch:
        return bool(ranks) and all(rank.progress.ended for rank in ranks)
    return waited or all(rank.is_settled for rank in ranks)


def _report(given: dict[str, Any]) -> int:
    async def read() -> tuple[Any, ...]:
        state = await RunState.find(given["uri"])
        return state.store.uri, await state.attempts(), await state.manifests(), await state.world_size()

    facts = asyncio.run(read())
    if given["json"]:
        print(json.dumps(run_report.report(*facts)))
    else:
        _print(run_report.report_table(*facts))
    return exceptions.EXIT_DONE


def _print(tables: Group) -> None:
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    console.print(tables)


def _clean(given: dict[str, Any]) -> int:
    async def find() -> tuple[RunState, str]:
        state = await RunState.find(given["uri"])
        return state, await state.output_uri() if given["output"] else ""

    state, output = asyncio.run(find())
    what = f"the state in {state.store.uri}" + (f" and the output in {output}" if output else "")
    if not given["yes"]:
        if not sys.stdin.isatty():
            raise ConfigError(f"this removes {what}; say --yes")
        if input(f"Remove {what}? [y/N] ").strip().lower() not in {"y", "yes"}:
            return exceptions.EXIT_FAILED
    deleted = asyncio.run(state.remove(with_output=given["output"]))
    print(f"removed {what}: {deleted} objects")
    return exceptions.EXIT_DONE


if __name__ == "__main__":
    program()
