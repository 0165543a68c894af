"""A job whose S3 credentials come from an assumed role, through an Airflow connection."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from servers.faulty_s3 import FaultyS3, run_faulty_s3, run_token_service
from servers.rollout_job import JobProcess, State, die_with_parent, dummy_process

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.storage.object_store import StoreOptions
from airflow_provider_rollout.hooks.store import store_options

TOKEN_LIFE_S = 4.0
ROLE = "arn:aws:iam::123456789012:role/rollout"


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """S3 and a token service in one: moto takes any credentials, so what was sent is looked at apart."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
    ) as process:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.kill()


def make_bucket(aws: str, name: str) -> None:
    """An empty bucket."""
    client = boto3.client(
        "s3", endpoint_url=aws, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket=name)
    client.close()


def make_spec(tmp_path: Path, output: str, server_url: str, **config: Any) -> JobSpec:
    """A job on a running server."""
    return JobSpec(
        job_id="role",
        source=[str(tmp_path / "in.jsonl")],
        output=output,
        config=InferenceConfig(server_type="endpoint", endpoint_url=server_url, model_name_or_path="dummy", **config),
        prompt_template="{text}",
    )


def test_the_job_assumes_the_role_itself_and_stores_no_secret(aws, tmp_path, monkeypatch):
    """Worker and job reach the bucket with tokens of the role; its keys appear in no object and no log."""
    make_bucket(aws, "data")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(20)))
    with run_faulty_s3(aws) as proxy, dummy_process() as server:
        extra = {
            "region_name": "us-east-1",
            "role_arn": ROLE,
            "endpoint_url": proxy.endpoint_url,
            "service_config": {"sts": {"endpoint_url": aws}},
        }
        connection = {"conn_type": "aws", "login": "base-key", "password": "base-secret", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_ROLE", json.dumps(connection))
        output = "s3://data/run"
        options = store_options([output], "role")
        spec = make_spec(tmp_path, output, server.url)
        assert JobProcess(spec, options, log=tmp_path / "job.log").wait() == 0, (tmp_path / "job.log").read_text()
        assert proxy.tokens
        assert len(proxy.tokens) == len(proxy.seen)
        state = State(spec, options)
        assert [row.text for row in state.rows()] == [f"t{number}" for number in range(20)]
        objects = state.all_objects()
    secrets = [b"base-secret", *(token.encode() for token in set(proxy.tokens))]
    assert not [info.key for info, data in objects for secret in secrets if secret in data]
    log = (tmp_path / "job.log").read_bytes()
    assert not [secret for secret in secrets if secret in log]


def test_credentials_that_end_while_the_job_runs_are_renewed(aws, tmp_path, monkeypatch):
    """Each token is refused four seconds after its first use; the job outlives several of them."""
    make_bucket(aws, "renewed")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(120)))
    first_used_s: dict[str, float] = {}
    stopping = threading.Event()

    def expire(proxy: FaultyS3) -> None:
        while not stopping.wait(0.1):
            for token in set(proxy.tokens):
                if time.monotonic() - first_used_s.setdefault(token, time.monotonic()) > TOKEN_LIFE_S:
                    proxy.expired_tokens.add(token)

    with (
        run_faulty_s3(aws) as proxy,
        run_token_service("role-key", "role-secret", life_s=TOKEN_LIFE_S) as (sts, asked),
        dummy_process("--latency-ms", "400") as server,
    ):
        threading.Thread(target=expire, args=(proxy,)).start()
        options = StoreOptions(
            access_key_id="base-key",
            secret_access_key="base-secret",
            region="us-east-1",
            endpoint_url=proxy.endpoint_url,
            sts_endpoint_url=sts,
            role_arn=ROLE,
            credential_hold_s=1.5,
        )
        spec = make_spec(tmp_path, "s3://renewed/run", server.url, max_concurrent_generations=4)
        code = JobProcess(spec, options, log=tmp_path / "job.log").wait()
        stopping.set()
        assert code == 0, (tmp_path / "job.log").read_text()[-2000:]
        assert len(proxy.expired_tokens) >= 2
        assert len(asked) > len(proxy.expired_tokens)
        rows = State(spec, options).rows()
    assert [row.text for row in rows] == [f"t{number}" for number in range(120)]
