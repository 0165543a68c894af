"""``airflow rollout …``: the command line's looks at runs, with S3 reached by a connection of Airflow.

Receives: nothing; Airflow calls it when its own command line is read.        Hands on: the commands.
Invariant: the same tables and exit codes as ``airflow-rollout``; nothing of the engine is imported before a command runs.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

__all__ = ["get_rollout_commands"]

_SWITCHES = {
    "watch": "go on until every rank has ended; exit 0 if all succeeded, else 1",
    "json": "print JSON",
    "output": "remove the output too",
    "yes": "do not ask",
}
_COMMANDS = {
    "status": ("How every rank of a run stands", ("watch", "json")),
    "report": ("What a run wrote, what failed and why, and every attempt", ("json",)),
    "clean": ("Remove a run's state; refuses while a job is at work", ("output", "yes")),
}


def get_rollout_commands() -> list[Any]:
    """The group ``rollout`` of Airflow's command line."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand  # noqa: PLC0415 - only where a command line is read

    argument: Any = Arg  # published without type information
    uri = argument(("uri",), help="the run's output, or its checkpoints if they are elsewhere")
    connection = argument(("--aws-conn-id",), help="how S3 is reached (default: the machine's own AWS environment)")
    switches = {name: argument((f"--{name}",), help=text, action="store_true") for name, text in _SWITCHES.items()}
    commands = [
        ActionCommand(
            name=name,
            help=text,
            func=_runner(name, names),
            args=(uri, connection, *(switches[switch] for switch in names)),
        )
        for name, (text, names) in _COMMANDS.items()
    ]
    return [GroupCommand(name="rollout", help="Look at rollout jobs", subcommands=commands)]


def _runner(command: str, names: tuple[str, ...]) -> Callable[[Namespace], None]:
    def run(given: Namespace) -> None:
        from airflow_provider_rollout.engine.cli import main  # noqa: PLC0415 - see get_rollout_commands
        from airflow_provider_rollout.hooks.store import store_options  # noqa: PLC0415 - see get_rollout_commands

        if given.aws_conn_id is not None:
            os.environ.update(store_options([given.uri], given.aws_conn_id).to_environment())
        switches = [f"--{name}" for name in names if getattr(given, name)]
        sys.exit(main([command, given.uri, *switches]))

    return run
