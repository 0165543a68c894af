"""The connection says where the GPU is: this machine and its launcher, or an endpoint that runs already.

Receives: a connection id.        Hands on: a completed InferenceConfig, and jobs that are submitted, asked, cancelled.
Invariants: the key of the connection travels only in the environment of the job; the config holds the NAME of that variable. A connection
``vllm_default`` that does not exist is the process launcher with its defaults; any other missing connection is an error.
"""

from __future__ import annotations

import json
import shlex
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.error import URLError

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec, is_environment_name
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.progress import Liveness
from airflow_provider_rollout.launchers.base import Handle, Launch, launcher_named

__all__ = ["API_KEY_VARIABLE", "KILL_AFTER_S", "ServerSettings", "VllmHook"]

API_KEY_VARIABLE = "ROLLOUT_API_KEY"
KILL_AFTER_S = 35.0  # the job itself needs up to 30 s to flush and to stop its server


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a connection says.

    Attributes:
        launcher: where jobs are started.
        vllm_command: the program that serves, with its first arguments; None leaves the choice to the job.
        endpoint_url: a server that runs already, or None.
        api_key: its key.
    """

    launcher: str = "process"
    vllm_command: list[str] | None = None
    endpoint_url: str | None = None
    api_key: str | None = field(default=None, repr=False)


class VllmHook(BaseHook):
    """Starts rollout jobs where the connection says, and knows how they are.

    Args:
        vllm_conn_id: a connection of type "vllm"; None for the defaults of the process launcher.
    """

    conn_name_attr = "vllm_conn_id"
    default_conn_name = "vllm_default"
    conn_type = "vllm"
    hook_name = "vLLM"

    def __init__(self, vllm_conn_id: str | None = default_conn_name) -> None:
        super().__init__()
        self.vllm_conn_id = vllm_conn_id

    @cached_property
    def settings(self) -> ServerSettings:
        """The connection, read once.

        Raises:
            ConfigError: the connection's extra is wrong.
        """
        if self.vllm_conn_id is None:
            return ServerSettings()
        try:
            connection = self.get_connection(self.vllm_conn_id)
        except AirflowNotFoundException:
            if self.vllm_conn_id != self.default_conn_name:
                raise
            return ServerSettings()
        return _settings(connection)

    def complete(self, config: Mapping[str, Any]) -> tuple[InferenceConfig, dict[str, str]]:
        """Fill in what the connection knows, and take out what must not be stored.

        Returns:
            The config, and the environment variables of the job that hold its secrets.

        Raises:
            ConfigError: a parameter is wrong.
        """
        values, settings = dict(config), self.settings
        server_type = values.get("server_type")
        if server_type == "endpoint" and not values.get("endpoint_url"):
            values["endpoint_url"] = settings.endpoint_url
        if server_type == "vllm" and settings.vllm_command and not values.get("server_command"):
            values["server_command"] = settings.vllm_command
        key = values.get("api_key") or (settings.api_key if server_type == "endpoint" else None)
        if not key or is_environment_name(key):
            return InferenceConfig.from_dict(values), {}
        return InferenceConfig.from_dict({**values, "api_key": API_KEY_VARIABLE}), {API_KEY_VARIABLE: key}

    def submit(self, spec: JobSpec, spec_uri: str, environment: Mapping[str, str]) -> Handle:
        """Start the job whose spec is stored at ``spec_uri``.

        Args:
            spec: the spec, for its names.
            spec_uri: where the job reads it.
            environment: variables of the job alone, with its secrets.

        Raises:
            RolloutError: it cannot be started.
        """
        launch = Launch(
            job_id=spec.job_id,
            rank=spec.rank,
            checkpoints=spec.checkpoints_uri,
            spec_uri=spec_uri,
            environment=environment,
        )
        return launcher_named(self.settings.launcher).submit(launch)

    def status(self, handle: Mapping[str, Any]) -> Liveness:
        """Whether the job lives: "running", "gone" or "unknown". Blocks, and needs no connection."""
        return launcher_named(handle["launcher"]).status(handle)

    def exit_code(self, handle: Mapping[str, Any]) -> int | None:
        """How the job ended, if that is known."""
        return launcher_named(handle["launcher"]).exit_code(handle)

    def cancel(self, handle: Mapping[str, Any], *, kill_after_s: float | None = KILL_AFTER_S) -> None:
        """Stop the job where its launcher can; its cancel marker in the store is the caller's. Blocks until it has ended.

        Args:
            handle: the job.
            kill_after_s: seconds until it is ended by force; None only asks and does not wait.
        """
        launcher_named(handle["launcher"]).cancel(handle, kill_after_s=kill_after_s)

    def log_tail(self, handle: Mapping[str, Any]) -> str:
        """The end of the job's log, "" where it cannot be read."""
        return launcher_named(handle["launcher"]).log_tail(handle)

    def test_connection(self) -> tuple[bool, str]:
        """For Airflow's button "Test": ask the endpoint for its models, or look for the program that serves them."""
        try:
            settings = self.settings
            launcher_named(settings.launcher)
        except (ConfigError, AirflowNotFoundException) as error:
            return False, str(error)
        if settings.endpoint_url is None:
            program = (settings.vllm_command or ["vllm"])[0]
            found = shutil.which(program)
            if found is None:
                return (
                    False,
                    f"there is no program {program!r} on this machine; jobs run where the worker is, so ask there too",
                )
            return True, f"jobs start {found} beside the worker"
        return _ask_models(settings.endpoint_url, settings.api_key)


def _settings(connection: Any) -> ServerSettings:
    extra = connection.extra_dejson
    command = extra.get("vllm_command") or None
    if isinstance(command, str):
        command = shlex.split(command)
    if command is not None and not (isinstance(command, list) and all(isinstance(part, str) for part in command)):
        raise ConfigError(f"connection {connection.conn_id}: vllm_command must be a command line or a list of strings")
    launcher = str(extra.get("launcher") or "process")
    launcher_named(launcher)
    return ServerSettings(
        launcher=launcher,
        vllm_command=command,
        endpoint_url=_endpoint_url(connection),
        api_key=connection.password or None,
    )


def _endpoint_url(connection: Any) -> str | None:
    host = connection.host
    if not host:
        return None
    scheme, separator, rest = host.partition("://")
    if not separator:
        scheme, rest = connection.schema or "http", host
    if ":" in rest and not rest.startswith("[") and rest.count(":") > 1:
        rest = f"[{rest}]"  # an IPv6 address
    server, slash, path = rest.partition("/")
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}://{server}{port}{slash}{path}".rstrip("/")


def _ask_models(endpoint_url: str, api_key: str | None) -> tuple[bool, str]:
    url = f"{endpoint_url.removesuffix('/v1')}/v1/models"
    if not url.startswith(("http://", "https://")):
        return False, f"{url} is no http or https URL; correct the schema of the connection"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http and https only, see above
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - http and https only, see above
            models = [model["id"] for model in json.load(answer)["data"]]
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        return False, f"{url} does not list its models: {error}"
    return True, f"{url} serves {', '.join(models) or 'no model yet'}"
