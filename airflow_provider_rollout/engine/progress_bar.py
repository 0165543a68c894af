"""How a rollout job goes, shown to whoever started it from a shell.

Receives: AttemptRecords, one for each heartbeat.        Hands on: a live bar on a terminal, else a line in the log when the state changes.
Invariant: standard output stays free for what the command prints as its result.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from airflow_provider_rollout.engine.progress import AttemptRecord
from airflow_provider_rollout.engine.run_report import duration, progress_line

__all__ = ["Show", "show_progress"]

Show = Callable[[AttemptRecord], None]

_LOGGER = logging.getLogger(__name__)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# These tell every request at INFO.
_CHATTY = ("httpcore", "httpx", "botocore", "boto3", "urllib3")


@contextmanager
def show_progress() -> Iterator[Show]:
    """Set up the process's log and show progress while the block runs: as a bar if standard error is a terminal, else in the log.

    The log has a line for each change of state; the table of every ``metric_interval`` is the job's own.
    """
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    if sys.stderr.isatty():
        console = Console(stderr=True)
        logging.basicConfig(
            level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console, show_path=False)]
        )
        with _bar(console) as show:
            yield show
    else:
        logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
        yield _log_changes()


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("[bold]{task.fields[state]}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),  # what the words leave, down to nothing
        TextColumn("{task.fields[documents]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console, transient=False, expand=True) as progress:
        task_id = progress.add_task("", total=None, state="starting", documents="", facts="")

        def show(record: AttemptRecord) -> None:
            rates, totals, total = record.rates_per_s, record.totals, record.documents_total
            facts = [
                f"{rates.get('requests_succeeded', 0.0):.1f} req/s",
                f"{rates.get('completion_tokens', 0.0):,.0f} tok/s",
                f"{totals.get('cache_hits', 0):,} cached",
                f"{totals.get('documents_failed', 0):,} failed",
                f"{duration(record.eta_s)} left",
            ]
            progress.update(
                task_id,
                total=total,
                completed=record.documents_done,
                state=record.state.removesuffix("_server"),
                documents=f"{record.documents_done:,}/{'?' if total is None else f'{total:,}'}",
                facts="  ".join(facts),
            )

        yield show


def _log_changes() -> Show:
    state = ""

    def show(record: AttemptRecord) -> None:
        nonlocal state
        if record.state != state:
            state = record.state
            if state in {"failed", "cancelled"} and not record.documents_done:
                return  # nothing has gone on; the error says it all
            _LOGGER.info(progress_line(record))

    return show
