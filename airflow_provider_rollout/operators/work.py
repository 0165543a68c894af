"""The work of one try of a task: find the job of the try before, or start one.

Receives: a job spec and the secrets of its job.        Hands on: the Job to watch, and its end when it has ended well already.
Invariants: at most one job of a task instance is started on purpose; a second one that slips in is refused by the first one's claim on
the rank. A worker that died after it had stored a job's spec may have started the job: it is awaited until it counts as lost. A job that
runs with other parameters than those of now is stopped and its work resumed with the new ones, or refused by the job itself when they
change the answers. A job that succeeded and whose result never reached Airflow is not run again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from airflow.sdk import Context

from airflow_provider_rollout.engine.config import JobSpec, job_spec_bytes
from airflow_provider_rollout.engine.progress import Progress
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.hooks.report import ProgressReport
from airflow_provider_rollout.hooks.store import open_store
from airflow_provider_rollout.hooks.vllm import VllmHook
from airflow_provider_rollout.hooks.watch import Job, Watcher
from airflow_provider_rollout.operators.memory import Memory, recall, remember
from airflow_provider_rollout.operators.parameters import spec_digest

__all__ = ["Work", "new_job_id"]

log = logging.getLogger("airflow.task.operators.rollout")


def new_job_id(dag_id: str, task_id: str, rank: int) -> str:
    """A name for one launch that a person can place and that fits into a key and a file name."""
    place = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{dag_id}.{task_id}")[:80]
    return f"{place}-{rank:05d}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Work:
    """One try.

    Attributes:
        spec: what the job is to do.
        environment: variables that only the job gets, with its secrets.
        hook: starts jobs.
        aws_conn_id: how the state is reached on S3.
        context: the task's.
        durable: whether the task remembers its job between tries.
        force_rerun: whether a finished rank is done again.
    """

    spec: JobSpec
    environment: Mapping[str, str] = field(repr=False)
    hook: VllmHook
    aws_conn_id: str | None
    context: Context = field(repr=False)
    durable: bool
    force_rerun: bool

    def watcher(self, job: Job) -> Watcher:
        """Who looks at a job."""
        return Watcher(job, hook=self.hook, aws_conn_id=self.aws_conn_id)

    def find_or_submit(self) -> tuple[Job, dict[str, Any] | None]:
        """The job to watch, and its event when it has succeeded already.

        Raises:
            RolloutError: state cannot be read, or the job cannot be started.
        """
        memory = recall(self.context) if self.durable else None
        if memory is None or (memory.checkpoints, memory.rank) != (self.spec.checkpoints_uri, self.spec.rank):
            return self.submit(self._token(None)), None
        job = self._job(memory, reattached=True)
        progress, event = asyncio.run(self._look(job))
        is_same = memory.spec_digest == spec_digest(self.spec)
        if event is None:
            if is_same:
                log.info("Job %s of an earlier try is at work; watching it", job.job_id)
                return job, None
            log.info(
                "Job %s of an earlier try has other parameters; stopping it to resume its work with those of now",
                job.job_id,
            )
            asyncio.run(self.watcher(job).cancel())
            return self.submit(self._token(memory)), None
        if event["status"] != "succeeded":
            log.info("The earlier try's %s; starting a job that resumes its work", progress.reason)
            return self.submit(self._token(memory)), None
        if is_same and not memory.finished:
            log.info("Job %s of an earlier try has succeeded; taking its result", job.job_id)
            return job, event
        return self.submit(self._token(None)), None

    def submit(self, rerun_token: str | None) -> Job:
        """Store the spec and start a job; what is known is remembered before and after."""
        ti = self.context["ti"]
        spec = msgspec.structs.replace(
            self.spec, job_id=new_job_id(ti.dag_id, ti.task_id, self.spec.rank), rerun_token=rerun_token
        )
        memory = Memory(
            job_id=spec.job_id,
            rank=spec.rank,
            checkpoints=spec.checkpoints_uri,
            spec_digest=spec_digest(spec),
            rerun_token=rerun_token,
        )
        self._remember(memory)
        store = open_store(spec.checkpoints_uri, self.aws_conn_id)
        key = layout.spec(spec.job_id)
        asyncio.run(store.create(key, job_spec_bytes(spec)))
        handle = self.hook.submit(spec, f"{store.uri}/{key}", self.environment)
        memory = msgspec.structs.replace(memory, handle=handle)
        self._remember(memory)
        log.info(
            "Started job %s for rank %d of %d; its log: %s",
            spec.job_id,
            spec.rank,
            spec.world_size,
            handle.get("log_path", "-"),
        )
        return self._job(memory, reattached=False)

    def submit_again(self) -> Job:
        """Start the job that resumes the work of a lost one."""
        return self.submit(self._token(recall(self.context) if self.durable else None))

    def _token(self, unfinished: Memory | None) -> str | None:
        """The same token while a forced rerun is unfinished: a new one would begin it anew with each retry."""
        if not self.force_rerun:
            return None
        return (unfinished.rerun_token if unfinished else None) or secrets.token_hex(8)

    async def _look(self, job: Job) -> tuple[Progress, dict[str, Any] | None]:
        """How it stands, and its event when it has ended, or cannot have been started: that comes after its spec is stored."""
        watcher = self.watcher(job)
        progress = await watcher.look(ProgressReport(log, job.tags))
        never_launched = job.handle is None and progress.verdict == "starting" and not await self._has_spec(job)
        event = await watcher.describe(progress) if progress.ended or never_launched else None
        return progress, event

    async def _has_spec(self, job: Job) -> bool:
        store = await asyncio.to_thread(open_store, job.checkpoints, self.aws_conn_id)
        return await store.exists(layout.spec(job.job_id))

    def _job(self, memory: Memory, *, reattached: bool) -> Job:
        return Job(
            job_id=memory.job_id,
            rank=memory.rank,
            checkpoints=memory.checkpoints,
            handle=memory.handle,
            lost_after_s=self.spec.attempt_lost_after_sec,
            reattached=reattached,
            tags={"dag_id": self.context["ti"].dag_id, "task_id": self.context["ti"].task_id},
        )

    def _remember(self, memory: Memory) -> None:
        if self.durable:
            remember(self.context, memory)
