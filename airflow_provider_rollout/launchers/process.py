"""Rollout jobs as processes of the machine that the task runs on.

Receives: a Launch.        Hands on: a handle with host, boot, pid and start time.
Invariants: the job outlives the worker process that started it: a session of its own, no inherited pipe (one would hold Airflow's
supervisor for a minute), its own working directory. Airflow's configuration, connections and variables are not handed on to it. A pid
without the matching start time is somebody else's process and is never signalled. What a job leaves on this machine, its log and its exit
code, goes when a later job starts and nobody has written to it for two weeks.
The job dies with its machine, container or systemd unit: a worker that is a pod of its own needs another launcher.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from airflow.sdk.configuration import conf

from airflow_provider_rollout.engine.exceptions import RolloutError
from airflow_provider_rollout.engine.progress import Liveness, ProcessIdentity
from airflow_provider_rollout.launchers.base import Handle, Launch, Launcher

__all__ = ["ProcessLauncher", "import_folders", "job_environment", "remove_old_logs"]

_OF_AIRFLOW = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CTX_", "_AIRFLOW_", "__AIRFLOW_")
_TAIL_BYTES = 16 * 1024
_POLL_S = 0.1
_KEPT_S = 14 * 24 * 3600.0  # a job at work writes to its log every few minutes
_LEFT_BY_JOBS = ("*.log", "*.exit", "*.exit-new")

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Jobs started by this very process: their ends must be collected here, or they stay in the process table."""


class ProcessLauncher(Launcher):
    """Starts jobs beside the worker."""

    name = "process"

    def submit(self, launch: Launch) -> Handle:
        """Start a job in a session of its own.

        Raises:
            RolloutError: the log cannot be written, or the process cannot be started.
        """
        from airflow_provider_rollout.engine.storage.attempt import this_process  # noqa: PLC0415 - not where a DAG is parsed

        command = [sys.executable, "-m", "airflow_provider_rollout.launchers.child", "run", "--spec", launch.spec_uri]
        try:
            folder = _log_folder()
            remove_old_logs(folder, before_s=time.time() - _KEPT_S)
            log_path = folder / f"{launch.job_id}.log"
            note = {"ROLLOUT_EXIT_FILE": str(_exit_file(log_path))}
            with log_path.open("ab") as log:
                child = subprocess.Popen(  # noqa: S603 - this very package, no shell
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={**job_environment(os.environ), **launch.environment, **note},
                    start_new_session=True,
                    close_fds=True,
                )
        except OSError as error:
            raise RolloutError(f"job {launch.job_id} cannot be started on this machine: {error}") from error
        _children[child.pid] = child
        here = this_process()
        return {
            "launcher": self.name,
            "job_id": launch.job_id,
            "rank": launch.rank,
            "checkpoints": launch.checkpoints,
            "host": here.host,
            "boot_id": here.boot_id,
            "pid": child.pid,
            "create_time": _start_time_s(child.pid),
            "log_path": str(log_path),
        }

    def status(self, handle: Mapping[str, Any]) -> Liveness:
        """Whether the process lives; "unknown" on any other machine, boot or pid namespace."""
        from airflow_provider_rollout.engine.storage.attempt import process_is_gone  # noqa: PLC0415 - see submit

        _collect(handle["pid"])
        if not _is_here(handle):
            return "unknown"
        return "gone" if process_is_gone(_identity(handle)) else "running"

    def exit_code(self, handle: Mapping[str, Any]) -> int | None:
        """The exit code that the job left behind; None when it was killed, lives, or is not of this machine."""
        try:
            return int(_exit_file(Path(handle["log_path"])).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def cancel(self, handle: Mapping[str, Any], *, kill_after_s: float | None) -> None:
        """SIGTERM to the job's process group, SIGKILL after ``kill_after_s``; nothing on another machine."""
        if self.status(handle) != "running":
            return
        _signal_group(handle["pid"], signal.SIGTERM)
        if kill_after_s is None:
            return
        until_s = time.monotonic() + kill_after_s
        while time.monotonic() < until_s:
            if self.status(handle) != "running":
                return
            time.sleep(_POLL_S)
        _signal_group(handle["pid"], signal.SIGKILL)
        _collect(handle["pid"], wait_s=5.0)

    def log_tail(self, handle: Mapping[str, Any], *, lines: int = 40) -> str:
        """The last lines of the log file."""
        try:
            with Path(handle["log_path"]).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment without what is Airflow's, and with the folders that the worker imports from."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_OF_AIRFLOW)}
    kept["PYTHONPATH"] = os.pathsep.join(import_folders(sys.path))
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def import_folders(search_path: Iterable[str]) -> list[str]:
    """Those folders of an import path that are not the interpreter's own: DAG bundles, plugins, checkouts.

    The interpreter's own are left out so that a model server of another environment, a child of the job, keeps its packages apart.
    """
    own = {
        Path(path).resolve()
        for name, path in sysconfig.get_paths().items()
        if name in {"stdlib", "platstdlib", "purelib", "platlib", "scripts"}
    }
    own |= {Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages())}
    folders = []
    for entry in search_path:
        path = Path(entry).resolve()
        inside_own = any(path == folder or folder in path.parents for folder in own)
        if entry and path.is_dir() and not inside_own and str(path) not in folders:
            folders.append(str(path))
    return folders


def remove_old_logs(folder: Path, *, before_s: float) -> None:
    """Remove what jobs left in a folder and last wrote to before a time of day; what cannot be removed stays.

    Args:
        folder: that of the logs.
        before_s: seconds since 1970.
    """
    for path in (path for pattern in _LEFT_BY_JOBS for path in folder.glob(pattern)):
        with suppress(OSError):  # another worker was faster; a new job does not fail for an old log
            if path.stat().st_mtime < before_s:
                path.unlink()


def _log_folder() -> Path:
    """A folder of this user alone: logs quote documents and answers. ``[rollout] job_log_folder`` names another place for it."""
    named = conf.get("rollout", "job_log_folder", fallback="")
    folder = Path(named or tempfile.gettempdir()) / f"airflow-rollout-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _exit_file(log_path: Path) -> Path:
    return log_path.with_suffix(".exit")


def _start_time_s(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _identity(handle: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(
        host=handle["host"], boot_id=handle["boot_id"], pid=handle["pid"], start_time_s=handle["create_time"] or 0.0
    )


def _is_here(handle: Mapping[str, Any]) -> bool:
    from airflow_provider_rollout.engine.storage.attempt import this_process  # noqa: PLC0415 - see submit

    here = this_process()
    return bool((handle["host"], handle["boot_id"]) == (here.host, here.boot_id))


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _collect(pid: int, *, wait_s: float = 0.0) -> None:
    child = _children.get(pid)
    if child is None:
        return
    try:
        child.wait(wait_s) if wait_s else child.poll()
    except subprocess.TimeoutExpired:
        return
    if child.returncode is not None:
        del _children[pid]
