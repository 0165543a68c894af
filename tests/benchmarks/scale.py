"""Scale on paper: what a run of many ranks and documents asks of the object store and of Airflow, from the constants in the code. Pure.

Receives: ranks, documents, shards, speed.        Hands on: a table of counts and rates, each with the limit that it meets first; the
requests of a rank's steps, which ranks.py counts on the wire.
Source of the limits: "Best practices design patterns: optimizing Amazon S3 performance" (3,500 writes and 5,500 reads per second and
prefix) and ListObjectsV2 (1,000 keys a page); Airflow's configuration reference (core.max_map_length, triggerer.capacity).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import astuple, dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from airflow_provider_rollout.engine.config import DEFAULT_RECORDS_PER_CHUNK
from airflow_provider_rollout.engine.storage.attempt import HEARTBEAT_S
from airflow_provider_rollout.engine.storage.input_plan import InputPlan, Part, Shard
from airflow_provider_rollout.engine.storage.request_cache import FLUSH_ROWS, FLUSH_S

S3_WRITES_PER_S, S3_READS_PER_S, S3_PAGE_KEYS = 3_500, 5_500, 1_000
AIRFLOW_MAX_MAP_LENGTH, AIRFLOW_TRIGGERS = 1_024, 1_000
_POLL_S = 10.0  # the operator's default


@dataclass(frozen=True)
class Requests:
    """Requests to the object store, by what S3 counts apart; a DELETE names up to 1,000 keys."""

    lists: float = 0
    reads: float = 0
    writes: float = 0
    deletes: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Requests:
        return Requests(*(count * times for count in astuple(self)))


BEAT = Requests(lists=1, reads=2, writes=1)  # the fence; the cancel marker, absent under HEAD and GET; the record
LOOK = Requests(lists=1, reads=1)  # of a watcher: the newest attempt
SEGMENT = Requests(writes=1)
# Each of output and commit record has its fence; absent dead letters and the segments are deleted.
CHUNK = Requests(lists=2, writes=2, deletes=2)
# The fence, the record; no look for a cancel.
_LAST_BEAT = Requests(lists=1, writes=1)


def start_of(shards: int) -> Requests:
    """A rank starts: input, attempts, fence, chunks, cache; plan, job, its manifest; its claim; proofs that it is done are taken back."""
    pages = math.ceil(shards / S3_PAGE_KEYS)
    return Requests(lists=pages + 4, reads=3, writes=1, deletes=2) + _LAST_BEAT


# Its outputs, the ranks' manifests, the fence; its manifest.
END = Requests(lists=3, writes=1) + _LAST_BEAT


def finish_of(ranks: int) -> Requests:
    """The last rank finishes the run: before and after its proof is written, all manifests are read."""
    return Requests(lists=4, reads=2 * ranks + 1, writes=2)


@dataclass(frozen=True)
class Run:
    """A run at full work.

    Attributes:
        ranks: jobs side by side, one mapped task each.
        documents: of the whole run.
        shards: input files.
        documents_per_s: of one rank; a GPU that writes 10,000 tokens/s does 20 of 500 tokens.
        records_per_chunk: documents per output object.
    """

    ranks: int = 1_000
    documents: int = 10**9
    shards: int = 10_000
    documents_per_s: float = 20.0
    records_per_chunk: int = DEFAULT_RECORDS_PER_CHUNK

    @property
    def hours(self) -> float:
        """How long it takes."""
        return self.documents / self.ranks / self.documents_per_s / 3600

    @property
    def chunks(self) -> int:
        """Output objects, and as many commit records."""
        return self.ranks * math.ceil(self.documents / self.ranks / self.records_per_chunk)

    @property
    def flushes_per_s(self) -> float:
        """Segments of the request cache written per second, all ranks together."""
        return self.ranks * max(1 / FLUSH_S, self.documents_per_s / FLUSH_ROWS)

    @property
    def per_s(self) -> Requests:
        """Requests of all ranks and their watchers per second."""
        steps = BEAT * (self.ranks / HEARTBEAT_S) + LOOK * (self.ranks / _POLL_S)
        return steps + SEGMENT * self.flushes_per_s + CHUNK * (self.chunks / (self.hours * 3600))

    @property
    def open_segments(self) -> int:
        """Segments that exist at once: those of the chunk at work."""
        return math.ceil(self.records_per_chunk / self.documents_per_s * self.flushes_per_s)

    @property
    def plan_bytes(self) -> int:
        """Size of plan.json, which every rank reads when it starts."""
        shard = Shard(uri="s3://corpus/dataset/part-0000000.jsonl.gz", size_bytes=10**9, version="0" * 34)
        sample = InputPlan(shards=[shard] * 100, world_size=self.ranks, parts=[Part(10**5, 0, None)] * 100)
        return len(msgspec.json.encode(sample)) * self.shards // 100

    @property
    def start(self) -> Requests:
        """When all ranks start."""
        return start_of(self.shards) * self.ranks

    @property
    def resume_reads(self) -> int:
        """GETs when all ranks start anew half-way: their commit records and their segments."""
        return self.chunks // 2 + self.open_segments + int(self.start.reads)


def rows_of(run: Run) -> list[tuple[str, str, str]]:
    """What, how much, and what to hold it against."""
    return [
        ("time at full work", f"{run.hours:.1f} h", ""),
        ("output objects; as many commit records", f"{run.chunks:,}", "readers open each: 10^5 to 10^6 is their limit"),
        ("open cache segments, deleted with their chunks", f"{run.open_segments:,}", ""),
        ("writes and DELETEs per second", f"{run.per_s.writes + run.per_s.deletes:,.0f}", f"{S3_WRITES_PER_S:,} per prefix"),
        ("… of them cache segments", f"{run.flushes_per_s:,.0f}", ""),
        ("reads and LISTs per second", f"{run.per_s.reads + run.per_s.lists:,.0f}", f"{S3_READS_PER_S:,} per prefix"),
        ("plan.json, read by every rank", f"{run.plan_bytes / 1e6:,.1f} MB", "100 MB: seconds at every start"),
        ("LIST pages when all ranks start", f"{run.start.lists:,.0f}", f"{run.start.lists / S3_READS_PER_S:.1f} s at the limit"),
        ("GETs when all ranks resume half-way", f"{run.resume_reads:,}", f"{run.resume_reads / S3_READS_PER_S:.0f} s at the limit"),
        ("GETs of the last rank, for the run's manifest", f"{finish_of(run.ranks).reads:,}", "ranks that end at once read as often"),
        ("mapped tasks", f"{run.ranks:,}", f"core.max_map_length {AIRFLOW_MAX_MAP_LENGTH:,}"),
        ("triggerers", f"{math.ceil(run.ranks / AIRFLOW_TRIGGERS)}", f"triggerer.capacity {AIRFLOW_TRIGGERS:,}"),
    ]  # fmt: skip


def ranks_at_write_limit(run: Run) -> int:
    """How many such ranks one prefix bears."""
    return int(S3_WRITES_PER_S / ((run.per_s.writes + run.per_s.deletes) / run.ranks))


def main() -> None:
    """Print the table for the run that the command line describes."""
    usual = Run()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=usual.ranks)
    parser.add_argument("--documents", type=float, default=usual.documents)
    parser.add_argument("--shards", type=int, default=usual.shards)
    parser.add_argument("--documents-per-s", type=float, default=usual.documents_per_s, help="of one rank")
    parser.add_argument("--records-per-chunk", type=int, default=usual.records_per_chunk)
    arguments = parser.parse_args()
    arguments.documents = int(arguments.documents)
    run = Run(**vars(arguments))
    table = Table("what", "how much", "held against", title=f"{run.ranks:,} ranks, {run.documents:,} documents")
    for row in rows_of(run):
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(f"One prefix of S3 bears the writes of {ranks_at_write_limit(run):,} such ranks.")


if __name__ == "__main__":
    main()
