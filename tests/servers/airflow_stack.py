"""A real Airflow: api-server, scheduler with LocalExecutor, dag-processor and triggerer as processes, over PostgreSQL.

Receives: a database URL and a folder of DAGs.        Hands on: the components, which can be killed and started one by one, and Airflow's
REST API.
Invariants: nothing outlives the test, also when the test is killed. Whatever a component leaves behind when it is killed (workers, rollout
jobs) lives on until then, as on a machine. Intervals that only delay are short; the heartbeat of the workers is Airflow's own.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from servers.process_holder import Holder, hold_processes

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
_START_TIMEOUT_S = 180.0
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


class AirflowStack:
    """The running components, and how to talk to them."""

    def __init__(self, holder: Holder, home: Path, url: str, environment: Mapping[str, str]) -> None:
        self.home, self.url, self.environment = home, url, dict(environment)
        self.pids: dict[str, int] = {}
        self._holder = holder
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30)

    def close(self) -> None:
        """Hang up; the components end with their holder."""
        self._http.close()

    def start(self, component: str) -> None:
        """Start one component."""
        command = [sys.executable, "-m", "airflow", component]
        self.pids[component] = self._holder.start(command, self.home / f"{component}.log")

    def kill(self, component: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one component and wait until it is gone; what it started is not touched."""
        process = psutil.Process(self.pids.pop(component))
        process.send_signal(number)
        process.wait(60)

    def crash(self, component: str) -> None:
        """Kill a component with all that runs in its own session, as if its container had died."""
        session = os.getsid(self.pids[component])
        self.kill(component)
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == session:
                    process.kill()

    def worker(self) -> psutil.Process:
        """The one worker that is busy; below it is the process of its task."""

        def busy() -> list[psutil.Process]:
            return [child for child in psutil.Process(self.pids["scheduler"]).children() if child.children()]

        wait_until(lambda: len(busy()) == 1, 60, "one worker is busy")
        return busy()[0]

    def task_process(self, run: Run, *, task_id: str = "ask") -> psutil.Process:
        """The process of a task; above it is its worker."""
        title = f"airflow worker -- {run.task(task_id)['id']}"

        def found() -> list[psutil.Process]:
            return [item for item in psutil.process_iter(["cmdline"]) if " ".join(item.info["cmdline"] or []) == title]

        wait_until(lambda: bool(found()), 60, f"the task {task_id} is at work", every_s=0.01)
        return found()[0]

    def command(self, *arguments: str) -> str:
        """Run Airflow's command line where the components run; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"airflow {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def add_connection(self, conn_id: str, conn_type: str, **fields: Any) -> None:
        """Store a connection; its secrets are nowhere else."""
        self.ask("POST", "connections", {"connection_id": conn_id, "conn_type": conn_type, **fields})

    def wait_healthy(self) -> None:
        """Until all components say that they are."""

        def healthy() -> bool:
            with suppress(httpx.HTTPError):
                parts = self._http.get("/api/v2/monitor/health").json()
                return all(
                    parts[name]["status"] == "healthy"
                    for name in ("metadatabase", "scheduler", "dag_processor", "triggerer")
                )
            return False

        wait_until(healthy, _START_TIMEOUT_S, "Airflow is healthy")
        token = self._http.get("/auth/token").json()["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, json: Any = None, **parameters: Any) -> Any:
        """One call of the REST API."""
        answer = self._http.request(method, f"/api/v2/{path}", json=json, params=parameters)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json() if answer.content else None

    def wait_dags(self, *dag_ids: str) -> None:
        """Until the DAGs can be run."""

        def known() -> bool:
            return set(dag_ids) <= {dag["dag_id"] for dag in self.ask("GET", "dags", limit=100)["dags"]}

        wait_until(known, 60, f"the DAGs {dag_ids} are parsed")

    def run(self, dag_id: str, *, partition_key: str | None = None, **conf: Any) -> Run:
        """Start a DAG run, without a logical date."""
        body = {"logical_date": None, "partition_key": partition_key, "conf": conf}
        run = self.ask("POST", f"dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, run["dag_run_id"])


class Run:
    """One DAG run."""

    def __init__(self, stack: AirflowStack, dag_id: str, run_id: str) -> None:
        self.stack, self.dag_id, self.run_id = stack, dag_id, run_id
        self._path = f"dags/{dag_id}/dagRuns/{run_id}"

    def tasks(self, task_id: str = "ask") -> list[dict[str, Any]]:
        """The instances of a task, in the order of their map index."""
        found = self.stack.ask("GET", f"{self._path}/taskInstances", task_id=task_id, limit=100)["task_instances"]
        return sorted((item for item in found if item["task_id"] == task_id), key=lambda item: int(item["map_index"]))

    def task(self, task_id: str = "ask", map_index: int = -1) -> dict[str, Any]:
        """One task instance."""
        return next(item for item in self.tasks(task_id) if item["map_index"] == map_index)

    def wait_task(
        self, *states: str, task_id: str = "ask", map_index: int = -1, timeout_s: float = 90
    ) -> dict[str, Any]:
        """Until a task instance is in one of the states."""
        what = f"{self.dag_id}.{task_id}[{map_index}] is {' or '.join(states)}"
        wait_until(lambda: self.task(task_id, map_index)["state"] in states, timeout_s, what, self.describe)
        return self.task(task_id, map_index)

    def wait(self, state: str = "success", timeout_s: float = 120) -> None:
        """Until the run has ended, in this state."""

        def ended() -> bool:
            return self.stack.ask("GET", self._path)["state"] in _ENDED

        wait_until(ended, timeout_s, f"{self.dag_id} ends", self.describe)
        now = self.stack.ask("GET", self._path)["state"]
        assert now == state, self.describe()

    def mark(self, state: str, task_id: str = "ask") -> None:
        """Set a task instance's state by hand."""
        self.stack.ask("PATCH", f"{self._path}/taskInstances/{task_id}", {"new_state": state})

    def clear(self, *task_ids: Any, **options: Any) -> None:
        """Clear task instances, whatever their state; an id may be [task_id, map_index]."""
        body = {"dag_run_id": self.run_id, "task_ids": list(task_ids or ("ask",)), "dry_run": False}
        body |= {"only_failed": False, "reset_dag_runs": True, **options}
        self.stack.ask("POST", f"dags/{self.dag_id}/clearTaskInstances", body)

    def result(self, task_id: str = "ask", map_index: int = -1) -> Any:
        """What a task has returned."""
        path = f"{self._path}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.stack.ask("GET", path, map_index=map_index, deserialize=True)["value"]

    def log(self, task_id: str = "ask", try_number: int = 1, map_index: int = -1) -> str:
        """The log of a try."""
        path = f"{self._path}/taskInstances/{task_id}/logs/{try_number}"
        lines = self.stack.ask("GET", path, map_index=map_index, full_content=True)["content"]
        return "\n".join(_text(line) for line in lines)

    def describe(self) -> str:
        """For a test that fails: states and the end of the log."""
        items = self.stack.ask("GET", f"{self._path}/taskInstances", limit=100)["task_instances"]
        states = [(item["task_id"], item["map_index"], item["state"], item["try_number"]) for item in items]
        tails = [
            self.log(item["task_id"], item["try_number"], item["map_index"])[-3000:]
            for item in items
            if item["try_number"]
        ]
        return f"{states}\n" + "\n---\n".join(tails[:3])


def _text(line: Any) -> str:
    """A line of a log, with the exception that it reports."""
    if not isinstance(line, dict):
        return str(line)
    errors = [f"{error.get('exc_type', '')}: {error.get('exc_value', '')}" for error in line.get("error_detail") or []]
    return "\n".join([str(line.get("event", line)), *errors])


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    what: str,
    describe: Callable[[], str] = lambda: "",
    *,
    every_s: float = 0.25,
) -> float:
    """Wait for something; the seconds it took."""
    started_s = time.monotonic()
    while not condition():
        if time.monotonic() - started_s > timeout_s:
            raise AssertionError(f"after {timeout_s:.0f} s it is not so that {what}\n{describe()}")
        time.sleep(every_s)
    return time.monotonic() - started_s


@contextmanager
def run_airflow(home: Path, dags: Path, database_url: str, more: Mapping[str, str]) -> Iterator[AirflowStack]:
    """Make the database, start all components and wait until they are healthy."""
    ports = [_free_port() for _ in range(3)]
    environment = _environment(home, dags, database_url, ports) | more
    log = home / "migrate.log"
    with log.open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"], env=environment, stdout=out, stderr=out, check=True
        )
    with hold_processes(environment) as holder:
        stack = AirflowStack(holder, home, f"http://127.0.0.1:{ports[0]}", environment)
        for component in COMPONENTS:
            stack.start(component)
        try:
            stack.wait_healthy()
            yield stack
        finally:
            stack.close()


def _environment(home: Path, dags: Path, database_url: str, ports: list[int]) -> dict[str, str]:
    api, worker_log, trigger_log = ports
    settings = {
        "CORE__DAGS_FOLDER": dags,
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 6,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
        "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "DATABASE__SQL_ALCHEMY_CONN": database_url,
        "API__HOST": "127.0.0.1",
        "API__PORT": api,
        "API__BASE_URL": f"http://127.0.0.1:{api}",
        "API__WORKERS": 1,
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "LOGGING__WORKER_LOG_SERVER_PORT": worker_log,
        "LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_log,
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 30,
        "DAG_PROCESSOR__REFRESH_INTERVAL": 10,
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.2,
        "SCHEDULER__ENABLE_HEALTH_CHECK": False,
        "SCHEDULER__JOB_HEARTBEAT_SEC": 2,
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 15,
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 5,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 20,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 2,
        "TRIGGERER__JOB_HEARTBEAT_SEC": 1,
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 10,
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "ROLLOUT_"))}
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        "PYTHONWARNINGS": "ignore",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
