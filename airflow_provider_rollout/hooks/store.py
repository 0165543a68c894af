"""How a job, a worker and a trigger reach the same object store: an AWS connection becomes the engine's store options.

Receives: URIs and the id of an AWS connection.        Hands on: StoreOptions, or an open ObjectStore.
Invariants: the connection is looked at only when one of the URIs is on S3; a connection that does not exist means the default AWS chain,
as everywhere in Airflow. A role is handed on with the keys that assume it, so that a job of many hours renews its own credentials; keys
that end and cannot be renewed are handed on with a warning. Everything here blocks: an event loop calls it in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    from airflow_provider_rollout.engine.storage.object_store import ObjectStore
    from airflow_provider_rollout.engine.storage.store_options import StoreOptions

__all__ = ["open_store", "store_options"]

log = logging.getLogger(__name__)

_S3 = ("s3://", "s3a://")


def store_options(uris: Iterable[str], aws_conn_id: str | None) -> StoreOptions:
    """The options with which all of the URIs are reached."""
    from airflow_provider_rollout.engine.storage.store_options import StoreOptions  # noqa: PLC0415 - not where a DAG is parsed

    if aws_conn_id is None or not any(uri.startswith(_S3) for uri in uris):
        return StoreOptions()
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook  # noqa: PLC0415 - imports boto3

    hook: AwsGenericHook[Any] = AwsGenericHook(aws_conn_id=aws_conn_id, client_type="s3")
    connection = hook.conn_config
    common: dict[str, Any] = {
        "region": connection.region_name,
        "endpoint_url": connection.get_service_endpoint_url("s3"),
        "verify": connection.verify,
    }
    if connection.role_arn and connection.assume_role_method == "assume_role":
        return StoreOptions(**common, **_role(connection), **_keys(connection))
    if connection.role_arn or connection.profile_name:
        return StoreOptions(**common, **_keys_of_the_moment(hook))
    return StoreOptions(**common, **_keys(connection))


def open_store(uri: str, aws_conn_id: str | None) -> ObjectStore:
    """The store at a URI, reached with an AWS connection if it is on S3.

    Raises:
        ConfigError: no such kind of URI.
        StoreError: the folder cannot be made.
    """
    from airflow_provider_rollout.engine.storage.object_store import ObjectStore  # noqa: PLC0415 - not where a DAG is parsed

    return ObjectStore.open(uri, store_options([uri], aws_conn_id))


def _keys(connection: AwsConnectionWrapper) -> dict[str, Any]:
    return {
        "access_key_id": connection.aws_access_key_id,
        "secret_access_key": connection.aws_secret_access_key,
        "session_token": connection.aws_session_token,
    }


def _role(connection: AwsConnectionWrapper) -> dict[str, Any]:
    more = dict(connection.assume_role_kwargs)
    external_id = connection.extra_config.get("external_id")
    return {
        "role_arn": connection.role_arn,
        "external_id": more.pop("ExternalId", external_id),
        "role_session_name": more.pop("RoleSessionName", None),
        "sts_endpoint_url": connection.get_service_endpoint_url("sts", sts_connection_assume=True),
        "assume_role_kwargs": more,
    }


def _keys_of_the_moment(hook: Any) -> dict[str, Any]:
    """For a profile, SAML or a web identity: what the worker's session holds now."""
    keys = hook.get_session().get_credentials().get_frozen_credentials()
    if keys.token:
        log.warning(
            "AWS connection %s gives credentials that end; a job that runs longer must be retried. Use role_arn with assume_role, "
            "or the machine's own role (aws_conn_id=None), for long jobs",
            hook.aws_conn_id,
        )
    return {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "session_token": keys.token}
