"""How a store is reached: keys, roles, certificates, and the environment of a child process."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from servers.faulty_s3 import FaultyS3, run_token_service
from servers.seaweedfs import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server

from airflow_provider_rollout.engine.exceptions import (
    ConfigError,
    StoreError,
)
from airflow_provider_rollout.engine.storage.object_store import ObjectStore, StoreOptions
from airflow_provider_rollout.engine.storage.store_options import build_client


def test_options_survive_the_environment_and_hide_their_secrets() -> None:
    """A child process gets what its parent had; a log gets no key."""
    options = StoreOptions(
        access_key_id="AK", secret_access_key="hush", session_token="hush2", external_id="hush3", verify=False
    )
    assert "hush" not in repr(options)
    assert "AK" not in repr(options)
    assert StoreOptions().to_environment() == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLOUT_STORE_OPTIONS", options.to_environment()["ROLLOUT_STORE_OPTIONS"])
        assert StoreOptions.from_environment() == options
        for text in ("{", "[]", '{"secret": "hush"}', '{"region": 5, "access_key_id": "hush"}'):
            patch.setenv("ROLLOUT_STORE_OPTIONS", text)
            with pytest.raises(ConfigError, match="ROLLOUT_STORE_OPTIONS") as caught:
                StoreOptions.from_environment()
            assert "hush" not in str(caught.value)


def test_a_missing_certificate_bundle_is_named() -> None:
    """It is read where the store is opened, and only for https."""
    with pytest.raises(ConfigError, match="/no/such/bundle"):
        ObjectStore.open("s3://bucket", StoreOptions(verify="/no/such/bundle"))
    ObjectStore.open("s3://bucket", StoreOptions(verify="/no/such/bundle", endpoint_url="http://127.0.0.1:1"))


ROLE = StoreOptions(
    access_key_id="user",
    secret_access_key="user-secret",
    region="us-east-1",
    endpoint_url="http://127.0.0.1:9",
    role_arn="arn:aws:iam::123456789012:role/batch",
    role_session_name="nightly",
    external_id="ext",
    assume_role_kwargs={"DurationSeconds": 900},
    max_attempts=1,
)


@pytest.mark.s3
async def test_requests_are_signed_with_the_role(
    faulty_s3: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role is assumed once, with its arguments, and its token goes with each request."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/no/such/bundle")  # plain HTTP needs none
    with run_token_service(ACCESS_KEY_ID, SECRET_ACCESS_KEY, life_s=3600) as (sts_url, asked):
        options = replace(ROLE, endpoint_url=faulty_s3.endpoint_url, sts_endpoint_url=sts_url)
        store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", options)
        for number in range(3):
            with pytest.raises(StoreError, match="access denied"):  # the test's server takes no session tokens
                await store.put(f"k{number}", b"x")
    assert faulty_s3.tokens == ["token-1"] * 3
    assert len(asked) == 1
    names = ("RoleArn", "RoleSessionName", "ExternalId", "DurationSeconds")
    assert [asked[0][name] for name in names] == ["arn:aws:iam::123456789012:role/batch", "nightly", "ext", "900"]


@pytest.mark.parametrize(("life_s", "calls"), [(3600, 1), (120, 3)])
def test_credentials_of_a_role_are_renewed_before_they_end(life_s: float, calls: int) -> None:
    """botocore renews what has less than ten minutes left; the client never keeps them for longer than that."""
    with run_token_service("key", "secret", life_s=life_s) as (sts_url, asked):
        provider = build_client("s3", "bucket", replace(ROLE, sts_endpoint_url=sts_url)).credential_provider
        for _ in range(3):
            credential = provider()
        assert credential["token"] == f"token-{calls}"
        assert credential["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)
        assert len(asked) == calls


async def test_a_role_that_cannot_be_assumed_is_named() -> None:
    """The error names the role and no secret."""
    options = replace(ROLE, sts_endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StoreError, match="role arn:aws:iam::123456789012:role/batch cannot be assumed") as caught:
        await ObjectStore.open("s3://bucket", options).get("k")
    assert "user-secret" not in str(caught.value)
