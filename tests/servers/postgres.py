"""A PostgreSQL for one test session: Debian's package, a folder and a port of its own, no fsync.

Receives: nothing.        Hands on: a URL for SQLAlchemy.
Invariants: the server ends with the process that started it; its folder is removed. It refuses to run as root, so root becomes the user
``postgres`` of the package.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 60.0


def postgres_programs() -> Path | None:
    """The folder of the newest PostgreSQL on this machine, or None."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    folders = [*reversed(debian), *(Path(entry) for entry in os.get_exec_path())]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def run_postgres() -> Iterator[str]:
    """Start a server with an empty database.

    Raises:
        RuntimeError: there is no PostgreSQL, or it did not start; the message holds the tail of its log.
    """
    programs = postgres_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL is missing; apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="rollout-postgres-"))
    user = _user()
    try:
        if user is not None:
            shutil.chown(folder, user, user)
        data, port = folder / "data", _free_port()
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "airflow", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            **_as(user),
        )
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                **_as(user),
            )
        try:
            _wait_ready(process, port, folder / "log")
            yield f"postgresql+psycopg2://airflow@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    """Runs in the child, after it has become another user: that would undo it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _user() -> str | None:
    if os.getuid() != 0:
        return None
    pwd.getpwnam("postgres")
    return "postgres"


def _as(user: str | None) -> dict[str, object]:
    return {"cwd": "/"} if user is None else {"cwd": "/", "user": user, "group": user, "extra_groups": []}


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if "ready to accept connections" in log.read_text(errors="replace"):
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start on port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
