"""The servers that a config asks for, each with its share of the machine.

Receives: an InferenceConfig.        Hands on: InferenceServers, not yet started.
Invariant: two replicas never share a GPU.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_rollout.engine.config import InferenceConfig, resolve_api_key
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.base import InferenceServer, OwnedServer
from airflow_provider_rollout.engine.serving.custom import CustomServer
from airflow_provider_rollout.engine.serving.dummy import DummyServer
from airflow_provider_rollout.engine.serving.endpoint import EndpointServer
from airflow_provider_rollout.engine.serving.sglang import SglangServer
from airflow_provider_rollout.engine.serving.vllm import VllmServer

__all__ = ["gpu_slices", "make_servers"]

_OWNED: dict[str, type[OwnedServer]] = {
    "vllm": VllmServer,
    "sglang": SglangServer,
    "custom": CustomServer,
    "dummy": DummyServer,
}
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


def make_servers(
    config: InferenceConfig, *, metrics: MetricsKeeper, log_folder: Path, on_change: Callable[[], None]
) -> list[InferenceServer]:
    """One server per endpoint URL or per replica.

    Raises:
        ConfigError: the API key's variable is not set, or the machine has too few GPUs.
    """
    api_key = _header_value(resolve_api_key(config.api_key))
    if config.server_type == "endpoint":
        servers = [
            EndpointServer(config, url=url, api_key=api_key, on_change=on_change) for url in config.endpoint_urls
        ]
        for server in servers:
            server.siblings = [other.lane for other in servers if other is not server]
        return list(servers)
    visible = config.server_env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    present = len(list(_GPU_FOLDER.iterdir())) if _GPU_FOLDER.is_dir() else None
    slices = gpu_slices(config, visible=visible, present=present)
    return [
        _OWNED[config.server_type](
            config,
            replica_index=index,
            api_key=api_key or secrets.token_urlsafe(32),
            metrics=metrics,
            log_folder=log_folder,
            extra_environment=slices[index],
            on_change=on_change,
        )
        for index in range(config.replicas)
    ]


def _header_value(api_key: str | None) -> str | None:
    """The key without the line break that secrets read from files end with.

    Raises:
        ConfigError: what is left cannot be sent.
    """
    key = api_key.strip() if api_key else None
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(
            "InferenceConfig.api_key: the key holds characters that no HTTP header may; check where it comes from"
        )
    return key or None


def gpu_slices(config: InferenceConfig, *, visible: str | None, present: int | None) -> list[Mapping[str, str]]:
    """The environment that gives each replica GPUs of its own; empty where there is one replica, or the GPUs are not known.

    Args:
        config: ``replicas``, and ``tp * dp * pp`` GPUs for each.
        visible: CUDA_VISIBLE_DEVICES, if it is set.
        present: how many GPUs the machine has, if it is known.

    Raises:
        ConfigError: there are too few.
    """
    devices = visible.split(",") if visible else [str(index) for index in range(present)] if present else None
    if config.replicas == 1 or devices is None or config.server_type not in {"vllm", "sglang"}:
        return [{}] * config.replicas
    share = config.tp * config.dp * config.pp
    if len(devices) < share * config.replicas:
        raise ConfigError(
            f"InferenceConfig.replicas: {config.replicas} replicas of {share} GPUs each need {share * config.replicas}, "
            f"and {len(devices)} are visible"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(devices[index * share : (index + 1) * share])}
        for index in range(config.replicas)
    ]
