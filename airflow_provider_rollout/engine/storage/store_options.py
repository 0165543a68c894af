"""How to reach an object store: keys, role, region, endpoint; and the obstore client built from it.

Receives: values of an Airflow connection, or one environment variable of the job.        Hands on: an obstore client.
Invariants: no secret is in a repr or in an error. Building a client sends nothing: an assumed role or a profile is asked for with the
first request. boto3 is imported only for those two. Credentials of a role are handed over for 10 minutes at most, of which the client
uses 5: botocore renews them when 10 are left, so the client never holds expired ones.
Source: obstore 0.12 (ClientConfig, RetryConfig, Boto3CredentialProvider); botocore refreshes mandatorily below 10 minutes; an
object_store client drops credentials 5 minutes before their expiry (measured).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import obstore.store
from obstore.exceptions import BaseError

from airflow_provider_rollout.engine.exceptions import ConfigError, StoreError

if TYPE_CHECKING:
    import boto3
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential, S3CredentialProvider

__all__ = ["ENVIRONMENT_VARIABLE", "StoreOptions", "build_client"]

ENVIRONMENT_VARIABLE = "ROLLOUT_STORE_OPTIONS"
_DROPPED_BEFORE_END_S = 300.0  # object_store lets go of credentials so long before their end
_PROFILE_FILES = ("~/.aws/credentials", "~/.aws/config")


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How to reach S3. Everything left out comes from the environment, as AWS programs do it.

    Attributes:
        access_key_id: static keys, or the keys that assume ``role_arn``.
        secret_access_key: see ``access_key_id``.
        session_token: see ``access_key_id``.
        region: "us-east-1" when neither this nor the environment says.
        endpoint_url: of a store that is not AWS; addressed as ``endpoint/bucket/key``.
        role_arn: a role to assume; renewed for as long as the job runs.
        role_session_name: how the role's log shows the job.
        external_id: what the role asks for, if it does.
        sts_endpoint_url: where the role is assumed, if not at AWS.
        assume_role_kwargs: more arguments of STS AssumeRole.
        verify: False trusts any certificate, a path names a bundle of trusted ones; AWS_CA_BUNDLE does the same.
        credential_hold_s: seconds for which credentials of a role are used until the session is asked again; botocore renews those that
            have less than 10 minutes left, so the default never meets their end.
        request_timeout_s: seconds for one HTTP request with its body.
        max_attempts: how often a request that fails without a verdict is made, with pauses of up to 20 s; the default outlasts a store
            that is away for a minute.
    """

    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    external_id: str | None = field(default=None, repr=False)
    sts_endpoint_url: str | None = None
    assume_role_kwargs: dict[str, Any] = field(default_factory=dict, repr=False)
    verify: bool | str | None = None
    credential_hold_s: float = 300.0
    request_timeout_s: float = 120.0
    max_attempts: int = 16

    @classmethod
    def from_environment(cls) -> StoreOptions:
        """Read the variable ``ROLLOUT_STORE_OPTIONS``; without it, the default AWS chain.

        Raises:
            ConfigError: the variable holds something else.
        """
        text = os.environ.get(ENVIRONMENT_VARIABLE)
        if not text:
            return cls()
        try:
            values = msgspec.json.decode(text, type=dict[str, Any])
            unknown = sorted(values.keys() - {item.name for item in fields(cls)})
            if unknown:
                raise ConfigError(f"the environment variable {ENVIRONMENT_VARIABLE} has no parameter {unknown[0]!r}")
            return msgspec.convert(values, cls)
        except msgspec.MsgspecError as error:  # its text names fields and types, never values
            raise ConfigError(
                f"the environment variable {ENVIRONMENT_VARIABLE} does not hold store options: {error}"
            ) from None

    def to_environment(self) -> dict[str, str]:
        """The variable that makes a child process reach the same store; it holds secrets, keep it off command lines."""
        default = StoreOptions()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values = {name: value for name, value in values.items() if value != getattr(default, name)}
        return {ENVIRONMENT_VARIABLE: msgspec.json.encode(values).decode()} if values else {}


def build_client(scheme: str, location: str, options: StoreOptions) -> obstore.store.ObjectStore:
    """Build the client of a bucket (S3) or of a whole URI (the other schemes).

    Raises:
        ConfigError: the options fit no client.
    """
    endpoint = options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    secure = not endpoint.startswith("http:")
    client_options: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "timeout": timedelta(seconds=options.request_timeout_s),
        "allow_http": not secure,
    }
    if secure:
        client_options.update(_trust(options))
    # Short: it renews neither signature nor credentials. The object store makes the long retries, which do.
    retry: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=30)}
    try:
        if scheme != "s3":
            return obstore.store.from_url(location, client_options=client_options, retry_config=retry)
        return obstore.store.S3Store(
            location,
            config=_s3_config(options),
            client_options=client_options,
            retry_config=retry,
            credential_provider=_credential_provider(options),
        )
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"cannot make a client for {scheme}://{location.removeprefix(scheme + '://')}: {reason}"
        ) from None


def _s3_config(options: StoreOptions) -> S3Config:
    # A copy that must not overwrite is a multipart upload of one copied part, completed on the condition that the key is absent.
    config: S3Config = {"virtual_hosted_style_request": False, "copy_if_not_exists": "multipart"}
    if options.region:
        config["region"] = options.region
    if options.endpoint_url:
        config["endpoint"] = config["aws_endpoint_url_s3"] = options.endpoint_url.rstrip("/")
    return config


def _trust(options: StoreOptions) -> ClientConfig:
    verify = options.verify
    if verify is False:
        return {"allow_invalid_certificates": True}
    bundle = verify if isinstance(verify, str) else os.environ.get("AWS_CA_BUNDLE")
    if not bundle:
        return {}
    try:
        return {"root_certificate": Path(bundle).read_bytes()}
    except OSError as error:
        raise ConfigError(
            f"the certificate bundle {bundle} cannot be read ({error.strerror}); correct verify or AWS_CA_BUNDLE"
        ) from None


def _credential_provider(options: StoreOptions) -> S3CredentialProvider | None:
    if options.role_arn:
        return _SessionCredentials(options)
    if options.access_key_id and options.secret_access_key:
        # Given so, they stand alone: as configuration they would be joined by a session token of the environment.
        credential: S3Credential = {
            "access_key_id": options.access_key_id,
            "secret_access_key": options.secret_access_key,
            "token": options.session_token,
            "expires_at": None,
        }
        return lambda: credential
    has_profile = os.environ.get("AWS_PROFILE") or any(Path(name).expanduser().exists() for name in _PROFILE_FILES)
    return _SessionCredentials(options) if has_profile and not os.environ.get("AWS_ACCESS_KEY_ID") else None


class _SessionCredentials:
    """Credentials of a boto3 session, made with the first request."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._ask: Any = None

    def __call__(self) -> S3Credential:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 costs half a second

        try:
            with self._lock:
                self._ask = self._ask or self._provider()
            credential: S3Credential = self._ask()
        except (BotoCoreError, ClientError) as error:
            role = self._options.role_arn
            who = f"the role {role} cannot be assumed" if role else "the AWS profile gives no credentials"
            raise StoreError(f"{who}: {error}") from None
        return credential

    def _provider(self) -> Any:
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415

        session = _boto3_session(self._options)
        if session.get_credentials() is None:
            raise StoreError(
                "no AWS credentials found; set keys, a profile or a role in the connection or the environment"
            )
        return Boto3CredentialProvider(
            session, ttl=timedelta(seconds=self._options.credential_hold_s + _DROPPED_BEFORE_END_S)
        )


def _boto3_session(options: StoreOptions) -> boto3.Session:
    import boto3  # noqa: PLC0415

    base = boto3.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        region_name=options.region,
    )
    if not options.role_arn:
        return base

    from botocore.credentials import DeferredRefreshableCredentials  # noqa: PLC0415
    from botocore.session import get_session  # noqa: PLC0415

    def assume() -> dict[str, str]:
        answer = _sts_client(base, options).assume_role(**_assume_role_arguments(options))["Credentials"]
        return {
            "access_key": answer["AccessKeyId"],
            "secret_key": answer["SecretAccessKey"],
            "token": answer["SessionToken"],
            "expiry_time": answer["Expiration"].isoformat(),
        }

    session = get_session()
    session._credentials = DeferredRefreshableCredentials(refresh_using=assume, method="sts-assume-role")  # noqa: SLF001
    return boto3.Session(botocore_session=session, region_name=options.region)


def _sts_client(session: boto3.Session, options: StoreOptions) -> Any:
    from botocore.config import Config  # noqa: PLC0415

    verify = options.verify
    if (options.sts_endpoint_url or "").startswith("http:"):
        verify = False  # a bundle named in the environment must exist otherwise, though plain HTTP never looks at it
    region = options.region or session.region_name or "us-east-1"
    # The store does not retry a refusal of credentials, so botocore does.
    config = Config(retries={"mode": "standard", "total_max_attempts": options.max_attempts})
    return session.client(
        "sts", region_name=region, endpoint_url=options.sts_endpoint_url, verify=verify, config=config
    )


def _assume_role_arguments(options: StoreOptions) -> dict[str, Any]:
    name = options.role_session_name or "airflow-provider-rollout"
    arguments = {**options.assume_role_kwargs, "RoleArn": options.role_arn, "RoleSessionName": name}
    if options.external_id:
        arguments["ExternalId"] = options.external_id
    return arguments
