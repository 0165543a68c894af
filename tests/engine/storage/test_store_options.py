"""How a store is reached: keys, roles, certificates, and the environment of a child process."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers.faulty_s3 import FaultyS3, run_faulty_s3, run_token_service
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


@pytest.mark.s3
async def test_given_keys_are_not_mixed_with_those_of_the_environment(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor with its session token, which belongs to other keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-somebody-else")
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", s3.options())
    await store.put("k", b"x")
    assert await store.get("k") == b"x"


@pytest.mark.s3
async def test_the_environment_alone_is_enough(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, region and endpoint by the names that all AWS programs know."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x")
    await store.put("k", b"x")
    assert await store.get("k") == b"x"


@pytest.mark.s3
async def test_a_profile_gives_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files that the AWS command line writes."""
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[lab]\naws_access_key_id={ACCESS_KEY_ID}\naws_secret_access_key={SECRET_ACCESS_KEY}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    options = StoreOptions(region="us-east-1", endpoint_url=s3.endpoint_url)
    store = ObjectStore.open(f"s3://{s3.new_bucket()}/x", options)
    await store.put("k", b"x")
    assert await store.get("k") == b"x"
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(StoreError, match="AWS profile gives no credentials"):
        await ObjectStore.open("s3://bucket", replace(options, max_attempts=1)).get("k")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody has signed, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + pem)
    return file


@pytest.mark.s3
async def test_certificates_are_checked_unless_said_otherwise(
    s3: S3Server, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown one is refused; verify=False, a bundle, or AWS_CA_BUNDLE let it pass."""
    bucket = s3.new_bucket()
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with run_faulty_s3(s3.endpoint_url, certificate) as proxy:
        options = s3.options(endpoint_url=proxy.endpoint_url, max_attempts=1)
        with pytest.raises(StoreError, match="cannot write"):
            await ObjectStore.open(f"s3://{bucket}", options).put("k", b"x")
        for verify in (False, str(certificate)):
            await ObjectStore.open(f"s3://{bucket}", replace(options, verify=verify)).put("k", b"x")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        assert await ObjectStore.open(f"s3://{bucket}", options).get("k") == b"x"
