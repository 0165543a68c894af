"""What people and scripts read about a run: tables and JSON. Pure.

Receives: RankStatus, AttemptRecord and RankManifest.        Hands on: rich tables, and values for ``--json``.
Invariant: a table and its JSON say the same; an unknown number is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from airflow_provider_rollout.engine.progress import AttemptRecord
from airflow_provider_rollout.engine.run_state import RankStatus
from airflow_provider_rollout.engine.storage.manifest import Counts, RankManifest

__all__ = ["duration", "progress_line", "report", "report_table", "status", "status_table", "summary_line"]

_COLOURS = {
    "starting": "dim",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
}
_ERROR_CHARS = 300  # of an error; all of it is in --json


def duration(seconds: float | None) -> str:
    """A length of time for people: ``1:02:03``; a dash when unknown."""
    if seconds is None:
        return "-"
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_s:02d}" if hours else f"{minutes}:{whole_s:02d}"


def progress_line(record: AttemptRecord) -> str:
    """How an attempt goes, in one line of a log."""
    rates = record.rates_per_s
    return (
        f"rank {record.rank} {record.state}: {record.documents_done:,}/{_total(record)} documents, "
        f"{rates.get('requests_succeeded', 0.0):.1f} requests/s, {rates.get('completion_tokens', 0.0):,.0f} tokens/s, "
        f"{record.totals.get('cache_hits', 0)} cache hits, {record.totals.get('documents_failed', 0)} failed, "
        f"{duration(record.eta_s)} left"
    )


def summary_line(manifest: RankManifest) -> str:
    """What a finished rank wrote, in one line."""
    causes = ", ".join(f"{cause}: {count}" for cause, count in manifest.top_causes.items())
    return (
        f"rank {manifest.rank} of {manifest.world_size} done: {manifest.documents_in} documents in, "
        f"{manifest.documents_written} written, {manifest.documents_failed} failed{f' ({causes})' if causes else ''}, "
        f"{manifest.documents_dropped} dropped; "
        f"{manifest.requests_sent} requests sent and {manifest.cache_hits} from the cache by attempt {manifest.epoch}; "
        f"output in {manifest.output}"
    )


def status(state_uri: str, ranks: Iterable[RankStatus]) -> dict[str, Any]:
    """How a run stands, as a JSON value."""
    return {
        "checkpoints": state_uri,
        "ranks": [
            {
                "rank": item.rank,
                "verdict": item.progress.verdict,
                "reason": item.progress.reason,
                "heartbeat_age_s": item.heartbeat_age_s,
                "heartbeat_has_moved": item.has_moved,
                "attempt": msgspec.to_builtins(item.progress.record),
            }
            for item in ranks
        ],
    }


def status_table(state_uri: str, ranks: Iterable[RankStatus]) -> Group:
    """How a run stands, a row for each rank; remarks stand below."""
    items = list(ranks)
    table = _table(
        f"Run at {state_uri}",
        ("rank", "attempt", "state"),
        ("documents", "failed", "req/s", "tokens/s", "cached", "left", "beat"),
    )
    for item in items:
        table.add_row(*_status_row(item))
    return Group(table, *_remarks((f"rank {item.rank}", _remark(item)) for item in items))


def report(
    state_uri: str,
    attempts: Mapping[int, list[AttemptRecord]],
    manifests: Iterable[RankManifest],
    world_size: int | None,
) -> dict[str, Any]:
    """What a run wrote and how it came about, as a JSON value."""
    done = list(manifests)
    return {
        "checkpoints": state_uri,
        "world_size": world_size,
        "ranks_done": len(done),
        "total": msgspec.to_builtins(_sum(done)),
        "ranks": [msgspec.to_builtins(manifest) for manifest in done],
        "attempts": {str(rank): msgspec.to_builtins(records) for rank, records in sorted(attempts.items())},
    }


def report_table(
    state_uri: str,
    attempts: Mapping[int, list[AttemptRecord]],
    manifests: Iterable[RankManifest],
    world_size: int | None,
) -> Group:
    """What a run wrote and how it came about, as tables."""
    done = list(manifests)
    total = _sum(done)
    ranks = _table(
        f"Run at {state_uri}: {len(done)} of {world_size or '?'} ranks done",
        ("rank",),
        ("documents", "written", "failed", "dropped", "bad rows", "chunks", "tokens in", "out", "bytes"),
    )
    for manifest in done:
        ranks.add_row(str(manifest.rank), *_counts_row(manifest))
    if len(done) > 1:
        ranks.add_section()
        ranks.add_row("all", *_counts_row(total))
    parts: list[Table | Text] = [
        ranks if done else Text(f"Run at {state_uri}: 0 of {world_size or '?'} ranks done\n", "bold"),
        *(Text(f"output in {uri}") for uri in sorted({item.output for item in done})),
    ]
    if total.top_causes:
        causes = _table("Most frequent causes of failed rollouts", ("cause",), ("rollouts",))
        for cause, count in total.top_causes.items():
            causes.add_row(Text(cause), f"{count:,}")
        parts.append(causes)
    records = [record for _, items in sorted(attempts.items()) for record in items]
    parts.append(_history(records))
    return Group(*parts, *_remarks((f"rank {item.rank}, attempt {item.epoch}", item.error) for item in records))


def _history(records: Iterable[AttemptRecord]) -> Table:
    table = _table(
        "Attempts",
        ("rank", "attempt", "state", "started (UTC)", "host"),
        ("took", "ended", "resumed", "cached", "requests"),
    )
    for record in records:
        table.add_row(
            str(record.rank),
            str(record.epoch),
            Text(record.state, _COLOURS.get(record.state, "")),
            record.started_at[5:19].replace("T", " "),
            Text(record.process.host),
            duration(record.elapsed_s),
            f"{record.documents_done - record.documents_resumed:,}",
            f"{record.documents_resumed:,}",
            f"{record.totals.get('cache_hits', 0):,}",
            f"{record.totals.get('requests_sent', 0):,}",
        )
    return table


def _table(title: str, words: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=SIMPLE, padding=0)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _status_row(item: RankStatus) -> list[str | Text]:
    verdict, record = item.progress.verdict, item.progress.record
    state = Text(record.state if record and verdict == "running" else verdict, _COLOURS[verdict])
    if record is None:
        return [str(item.rank), "-", state, *["-"] * 7]
    is_running = verdict == "running"
    rates = record.rates_per_s
    return [
        str(item.rank),
        str(record.epoch),
        state,
        f"{record.documents_done:,}/{_total(record)}",
        f"{record.totals.get('documents_failed', 0):,}",
        f"{rates.get('requests_succeeded', 0.0):.1f}" if is_running else "-",
        f"{rates.get('completion_tokens', 0.0):,.0f}" if is_running else "-",
        f"{record.totals.get('cache_hits', 0):,}",
        duration(record.eta_s) if is_running else "-",
        _age(item) if is_running else "-",
    ]


def _age(item: RankStatus) -> str:
    if item.heartbeat_age_s is None:
        return "-"
    return f"{'' if item.has_moved else '> '}{item.heartbeat_age_s:.0f} s"


def _remark(item: RankStatus) -> str | None:
    """What the row does not show: why a rank that needs somebody needs somebody."""
    if item.progress.verdict in {"starting", "running", "succeeded"}:
        return None
    record = item.progress.record
    return record.error if record and record.error else item.progress.reason


def _remarks(remarks: Iterable[tuple[str, str | None]]) -> list[Text]:
    """The first line of each remark: a server's log tail belongs into --json."""
    return [Text(f"{where}: {_first_line(remark)}") for where, remark in remarks if remark]


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _ERROR_CHARS else f"{line[: _ERROR_CHARS - 1]}…"


def _total(record: AttemptRecord) -> str:
    return "?" if record.documents_total is None else f"{record.documents_total:,}"


def _sum(manifests: Iterable[RankManifest]) -> Counts:
    total = Counts()
    for manifest in manifests:
        total += manifest
    return total


def _counts_row(counts: Counts) -> list[str]:
    exact = (
        counts.documents_in,
        counts.documents_written,
        counts.documents_failed,
        counts.documents_dropped,
        counts.bad_rows,
        counts.chunks,
    )
    large = (counts.prompt_tokens, counts.completion_tokens, counts.output_bytes)
    return [*(f"{number:,}" for number in exact), *map(_short, large)]


def _short(number: int) -> str:
    """Three digits and a unit, where the exact number is in --json: ``1.32 M``."""
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return str(number)
