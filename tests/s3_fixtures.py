"""Fixtures of the object store: a real S3 server, the same behind a faulty proxy, and places to write to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.faulty_s3 import FaultyS3, run_faulty_s3
from servers.seaweedfs import S3Server, run_seaweedfs


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3-compatible server for the whole session."""
    with run_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def faulty_s3(s3: S3Server) -> Iterator[FaultyS3]:
    """The same server behind a proxy whose faults a test scripts."""
    with run_faulty_s3(s3.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a folder, then one on S3, reachable with the options of the environment."""
    if request.param == "folder":
        return str(tmp_path / "a folder" / "täst")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.new_bucket()}/a prefix/täst"
