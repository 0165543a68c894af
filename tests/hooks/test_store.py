"""An AWS connection as store options."""

import json

import pytest

from airflow_provider_rollout.engine.storage.store_options import StoreOptions
from airflow_provider_rollout.hooks.store import open_store, store_options

S3 = ["s3://bucket/in", "/out"]


@pytest.fixture
def connect(monkeypatch):
    """Makes the connection ``store``."""

    def make(**fields) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", **fields}))
        return "store"

    return make


def test_the_connection_is_not_looked_at_for_folders(connect):
    """It need not even exist."""
    assert store_options(["/in", "/out"], "no_such") == StoreOptions()
    assert store_options(["gs://bucket/in"], "no_such") == StoreOptions()


def test_a_missing_connection_means_the_default_chain():
    """As everywhere in Airflow; None means the same on purpose."""
    assert store_options(S3, "aws_default") == StoreOptions()
    assert store_options(S3, None) == StoreOptions()


def test_keys_region_and_endpoint_are_taken(connect):
    """A store that is not AWS is reached by its endpoint."""
    extra = {"region_name": "eu-west-1", "endpoint_url": "http://minio:9000", "verify": False, "aws_session_token": "t"}
    options = store_options(S3, connect(login="key", password="secret", extra=json.dumps(extra)))
    assert options == StoreOptions(
        access_key_id="key",
        secret_access_key="secret",
        session_token="t",
        region="eu-west-1",
        endpoint_url="http://minio:9000",
        verify=False,
    )


def test_the_endpoint_of_the_service_outweighs_the_general_one(connect):
    """Airflow's own rule."""
    extra = {"endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "http://only-s3"}}}
    assert store_options(S3, connect(extra=json.dumps(extra))).endpoint_url == "http://only-s3"


def test_a_role_is_handed_on_with_the_keys_that_assume_it(connect):
    """The job renews it itself; nothing is asked of AWS here."""
    extra = {
        "role_arn": "arn:aws:iam::1:role/r",
        "external_id": "x",
        "assume_role_kwargs": {"RoleSessionName": "name", "DurationSeconds": 900},
        "service_config": {"sts": {"endpoint_url": "http://sts"}},
    }
    options = store_options(S3, connect(login="key", password="secret", extra=json.dumps(extra)))
    assert (options.role_arn, options.access_key_id, options.external_id) == ("arn:aws:iam::1:role/r", "key", "x")
    assert (options.role_session_name, options.sts_endpoint_url) == ("name", "http://sts")
    assert options.assume_role_kwargs == {"DurationSeconds": 900}


def test_options_reach_the_job_through_its_environment_and_not_its_repr(connect, monkeypatch):
    """What the child reads is what the worker had."""
    options = store_options(S3, connect(login="key", password="a-secret"))
    assert "a-secret" not in repr(options)
    for name, value in options.to_environment().items():
        monkeypatch.setenv(name, value)
    assert StoreOptions.from_environment() == options


async def test_a_folder_is_opened_without_a_connection(tmp_path):
    """The default of an operator on one machine."""
    store = open_store(str(tmp_path / "state"), "aws_default")
    await store.put("a", b"1")
    assert (tmp_path / "state" / "a").read_bytes() == b"1"
