"""Every key of the state and of the output, spelled once. Pure.

Invariant: keys sort in the order of what they count, so one LIST with a start offset finds the newest attempt or the later chunks.

::

    <output>/00000_chunk_00003.parquet        one chunk of one rank
    <output>/manifest.json, _SUCCESS          when all ranks are done
    <checkpoints>/job.json                    fingerprint of the work, written by the first attempt
    <checkpoints>/plan.json                   the pinned input shards
    <checkpoints>/specs/{job_id}.json         what a launcher starts a job with
    <checkpoints>/attempts/{rank}/{epoch}.json    claim, heartbeat and status of one start of a rank
    <checkpoints>/cache/{rank}/{epoch}-{seq}.seg  finished requests and documents of open chunks
    <checkpoints>/chunks/{rank}/{chunk}.json      commit record: this chunk is done
    <checkpoints>/failed/{rank}/{chunk}.jsonl     dead letters
    <checkpoints>/manifests/{rank}.json           this rank is done
    <checkpoints>/cancel/{job_id}                 the job is to stop
    <checkpoints>/reported/{job_id}.json          what a watcher has told Airflow's metrics of this job
    <either>/_uploads/{id}                        a large object on its way to its key
"""

from __future__ import annotations

import re

JOB = "job.json"
PLAN = "plan.json"
MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
MANIFESTS = "manifests/"
SPECS = "specs/"
UPLOADS = "_uploads/"

_OUTPUT = re.compile(r"\d{5,}_chunk_\d{5,}\.(parquet|jsonl|jsonl\.zst)\Z")
_NUMBER = re.compile(r"(\d+)\.[^/]*\Z")


def spec(job_id: str) -> str:
    """The stored job spec."""
    return f"{SPECS}{job_id}.json"


def cancel(job_id: str) -> str:
    """The marker that asks a job to stop."""
    return f"cancel/{job_id}"


def reported(job_id: str) -> str:
    """What has been told to metrics."""
    return f"reported/{job_id}.json"


def attempts(rank: int) -> str:
    """Prefix of a rank's attempts."""
    return f"attempts/{rank:05d}/"


def attempt(rank: int, epoch: int) -> str:
    """One attempt."""
    return f"{attempts(rank)}{epoch:08d}.json"


def cache(rank: int) -> str:
    """Prefix of a rank's request cache segments."""
    return f"cache/{rank:05d}/"


def segment(rank: int, epoch: int, sequence: int) -> str:
    """One request cache segment."""
    return f"{cache(rank)}{epoch:08d}-{sequence:08d}.seg"


def chunks(rank: int) -> str:
    """Prefix of a rank's commit records."""
    return f"chunks/{rank:05d}/"


def chunk(rank: int, chunk_index: int) -> str:
    """One commit record."""
    return f"{chunks(rank)}{chunk_index:07d}.json"


def dead_letters(rank: int, chunk_index: int) -> str:
    """The dead letters of one chunk."""
    return f"failed/{rank:05d}/{chunk_index:07d}.jsonl"


def rank_manifest(rank: int) -> str:
    """What one rank wrote."""
    return f"{MANIFESTS}{rank:05d}.json"


def output(rank: int, chunk_index: int, extension: str) -> str:
    """The output object of one chunk; ``extension`` without its dot. The name is datatrove's."""
    return f"{rank:05d}_chunk_{chunk_index:05d}.{extension}"


def output_prefix(rank: int) -> str:
    """Prefix of a rank's output objects."""
    return f"{rank:05d}_chunk_"


def upload(upload_id: str) -> str:
    """Where a large object is put together; a name that readers of a folder pass over."""
    return f"{UPLOADS}{upload_id}"


def is_output(key: str) -> bool:
    """Whether a key of the output is that of a chunk."""
    return _OUTPUT.match(key) is not None


def number(key: str) -> int:
    """The epoch, chunk or rank at the end of a key."""
    match = _NUMBER.search(key)
    if match is None:
        raise ValueError(f"{key!r} does not end in a number and an extension")
    return int(match.group(1))
