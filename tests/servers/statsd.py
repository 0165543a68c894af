"""A real StatsD daemon: the npm package ``statsd``, installed into .cache on first use.

Receives: UDP packets.        Hands on: what it has counted, by its management port.
Invariants: it never flushes while a test runs, so counters only grow; it can be away for a while, and counts from 0 when it is back; it
dies with its test.
Source: statsd 0.9.0; the management port answers ``counters`` with a JavaScript object, not JSON, and ``END``.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.rollout_job import die_with_parent

CACHE = Path(__file__).parent.parent.parent / ".cache" / "statsd"
_START_TIMEOUT_S = 30.0


@dataclass
class StatsD:
    """A daemon that runs, or is away for a while."""

    port: int
    management_port: int
    settings: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: it cannot be installed or started.
        """
        self.process = subprocess.Popen(
            ["node", str(_installed()), str(self.settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        _wait_ready(self.process, self)

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def counters(self) -> dict[str, float]:
        """Counts since the start."""
        return {name: float(value) for name, value in self._ask("counters").items()}

    def gauges(self) -> dict[str, float]:
        """The last values."""
        return {name: float(value) for name, value in self._ask("gauges").items()}

    def timers(self) -> dict[str, list[float]]:
        """All values in milliseconds."""
        return dict(self._ask("timers"))

    def _ask(self, what: str) -> dict:
        with socket.create_connection(("127.0.0.1", self.management_port), timeout=10) as connection:
            connection.sendall(f"{what}\n".encode())
            answer = b""
            while not answer.rstrip().endswith(b"END"):
                answer += connection.recv(65536)
        text = answer.decode().rpartition("END")[0]
        text = re.sub(r",?\s*\.\.\. \d+ more items?", "", re.sub(r"'([^']*)'", r'"\1"', text))
        return json.loads(re.sub(r"([{,]\s*)([A-Za-z_]\w*):", r'\1"\2":', text))


@contextmanager
def run_statsd(folder: Path) -> Iterator[StatsD]:
    """Start a daemon and stop it at the end.

    Raises:
        RuntimeError: it cannot be installed or started.
    """
    port, management_port = _free_ports()
    settings = {"port": port, "address": "127.0.0.1", "mgmt_port": management_port}
    settings |= {"mgmt_address": "127.0.0.1", "flushInterval": 600_000, "backends": []}
    path = folder / "statsd.js"
    path.write_text(json.dumps(settings))
    daemon = StatsD(port, management_port, path)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


def _installed() -> Path:
    program = CACHE / "node_modules" / "statsd" / "stats.js"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise RuntimeError("node and npm are missing; install them to test with a real StatsD daemon")
        CACHE.mkdir(parents=True, exist_ok=True)
        flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(CACHE)]
        subprocess.run([npm, "install", *flags, "statsd@0.9"], check=True, capture_output=True, cwd=CACHE)
    return program


def _wait_ready(process: subprocess.Popen[bytes], daemon: StatsD) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            daemon.counters()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the StatsD daemon did not start")


def _free_ports() -> tuple[int, int]:
    with socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        udp.bind(("127.0.0.1", 0))
        tcp.bind(("127.0.0.1", 0))
        return udp.getsockname()[1], tcp.getsockname()[1]
