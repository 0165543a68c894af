"""How a job stands, told from its status record and a clock. Pure; shared by trigger, operator, progress page and command line.

Receives: the newest AttemptRecord, what the launcher says of the process, and how long the record has not changed by the watcher's
own monotonic clock.        Hands on: Progress.
Invariant: the clocks of two machines are never compared; a record that does not change and a process that is gone both mean lost, and
a launcher that says "running" outweighs a record that stands still.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

__all__ = ["ENDED", "AttemptRecord", "JobState", "Liveness", "ProcessIdentity", "Progress", "judge"]

JobState = Literal["starting_server", "running", "draining", "succeeded", "failed", "cancelled", "interrupted"]
Verdict = Literal["starting", "running", "succeeded", "failed", "cancelled", "interrupted", "lost"]
Liveness = Literal["running", "gone", "unknown"]
"""What a launcher knows of a job's process."""

ENDED: frozenset[str] = frozenset({"succeeded", "failed", "cancelled", "interrupted"})


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Which process works on an attempt; pids are reused, so the start time belongs to it."""

    host: str
    boot_id: str
    pid: int
    start_time_s: float


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one rank: claim, heartbeat and status in one object.

    Attributes:
        epoch: 1 for a rank's first attempt, one more for each later one.
        heartbeat: grows with every rewrite; the watcher sees by it that the attempt lives.
        fingerprint, rerun_token: of the rank's state as it is stored: those of the attempt before until this one has cleared it.
        documents_total: documents in the rank's input; an estimate until the reader has seen its end, None when there is none.
        totals, rates_per_s, queues: see metrics.Snapshot; totals count this attempt only.
        documents_done: documents of this rank that have ended, in this and in earlier attempts.
        documents_resumed: those of them that earlier attempts finished.
        eta_s: seconds until done at the present rate, or None.
        top_causes: most frequent causes of failed rollouts, with their counts.
        error: why the attempt failed, or None.
        server_log_tail: last lines of the server's log, when the server failed.
    """

    job_id: str
    rank: int
    epoch: int
    state: JobState
    fingerprint: str
    process: ProcessIdentity
    started_at: str
    updated_at: str
    heartbeat: int = 0
    rerun_token: str | None = None
    documents_total: int | None = None
    documents_done: int = 0
    documents_resumed: int = 0
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    rates_per_s: dict[str, float] = msgspec.field(default_factory=dict)
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    elapsed_s: float = 0.0
    server_start_s: float | None = None
    eta_s: float | None = None
    top_causes: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    error_class: str | None = None
    exit_code: int | None = None
    server_log_tail: str | None = None
    manifest: dict[str, Any] | None = None
    schema_version: int = 1


class Progress(msgspec.Struct, frozen=True):
    """A watcher's judgement.

    Attributes:
        verdict: "starting" (no record of this job yet), "running", "succeeded", "failed", "cancelled", "interrupted", or "lost" (its
            process ended, or went silent, without saying how).
        reason: one sentence for people.
        record: the record judged, if there is one.
    """

    verdict: Verdict
    reason: str
    record: AttemptRecord | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.verdict not in {"starting", "running"}


def judge(
    record: AttemptRecord | None, *, job_id: str, liveness: Liveness, unchanged_s: float, lost_after_s: float
) -> Progress:
    """Judge how the job ``job_id`` stands.

    Args:
        record: the rank's newest attempt, of whichever job, or None.
        job_id: the job being watched.
        liveness: what its launcher says of it.
        unchanged_s: seconds, on the watcher's monotonic clock, since it first saw this version of the record.
        lost_after_s: seconds of silence that mean lost.
    """
    if record is None or record.job_id != job_id:
        if liveness == "gone":
            return Progress("lost", f"job {job_id} ended before it claimed its rank; its log tells why")
        if liveness == "unknown" and unchanged_s > lost_after_s:
            return Progress("lost", f"job {job_id} has not claimed its rank within {lost_after_s:.0f} s")
        return Progress("starting", f"job {job_id} is starting")
    if record.state in ENDED:
        return Progress(cast("Verdict", record.state), record.error or f"attempt {record.epoch} {record.state}", record)
    if liveness == "gone":
        return Progress(
            "lost", f"the process of attempt {record.epoch} is gone; the next attempt resumes from its state", record
        )
    if liveness == "unknown" and unchanged_s > lost_after_s:
        return Progress("lost", f"attempt {record.epoch} has been silent for {unchanged_s:.0f} s", record)
    return Progress("running", f"attempt {record.epoch} is {record.state}", record)
