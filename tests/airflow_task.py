"""A task's surroundings without a scheduler: a context, a job's state on disk, and small inputs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from airflow_provider_rollout.engine.progress import AttemptRecord, ProcessIdentity
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import this_process
from airflow_provider_rollout.hooks.watch import Job

DUMMY = {"server_type": "dummy", "model_name_or_path": "m"}


class StateStore:
    """Airflow's task state store, in memory: JSON in, JSON out."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.retentions: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.kept[key] = json.dumps(value)
        self.retentions[key] = retention


class OutletEvents(dict):
    """Airflow's accessor of outlet events: every asset has one."""

    def __missing__(self, key: Any) -> SimpleNamespace:
        self[key] = SimpleNamespace(extra={})
        return self[key]


def make_context(*, states: Any = None, map_index: int = -1) -> dict[str, Any]:
    """What a task is handed. ``states`` is what Airflow answers when asked for task states; an exception is raised."""

    def get_task_states(**asked: Any) -> Any:
        ti.asked = asked
        if isinstance(states, BaseException):
            raise states
        return states

    ti = SimpleNamespace(dag_id="d", task_id="ask", run_id="r", map_index=map_index, try_number=1, asked=None)
    ti.get_task_states = get_task_states
    return {"ti": ti, "task_state_store": StateStore(), "outlet_events": OutletEvents()}


async def say_nothing(progress: Any, store: Any) -> None:
    """For a watch that nobody listens to."""


def write_documents(folder: Path, count: int = 5) -> str:
    """A shard, and the glob that finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": str(number), "text": f"document {number}"}) for number in range(count)]
    (folder / "shard.jsonl").write_text("\n".join(lines) + "\n")
    return f"{folder}/*.jsonl"


def write_record(checkpoints: Path, *, job_id: str = "job-1", epoch: int = 1, **fields: Any) -> None:
    """An attempt as a job would leave it."""
    values = {
        "state": "running",
        "fingerprint": "f",
        "process": ProcessIdentity(host="h", boot_id="b", pid=1, start_time_s=1.0),
        "started_at": "",
        "updated_at": "",
    }
    record = AttemptRecord(job_id=job_id, rank=0, epoch=epoch, **{**values, **fields})
    path = checkpoints / layout.attempt(0, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(record))


def make_handle(checkpoints: Path, **fields: Any) -> dict[str, Any]:
    """A handle of the process launcher; by default of a process of this machine that has ended."""
    here = this_process()
    log = checkpoints / "job.log"
    return {
        "launcher": "process",
        "job_id": "job-1",
        "rank": 0,
        "checkpoints": str(checkpoints),
        "host": here.host,
        "boot_id": here.boot_id,
        "pid": here.pid,
        "create_time": 1.0,
        "log_path": str(log),
        **fields,
    }


def make_job(checkpoints: Path, *, handle: dict[str, Any] | None = None, **fields: Any) -> Job:
    """A job to watch."""
    return Job(job_id="job-1", rank=0, checkpoints=str(checkpoints), handle=handle, **fields)
