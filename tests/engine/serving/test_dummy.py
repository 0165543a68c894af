"""The dummy as a replica."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.dummy import DummyServer


def server(tmp_path, **flags):
    """A server that is not started."""
    config = InferenceConfig(server_type="dummy", model_name_or_path="m", model_kwargs=flags)
    return DummyServer(
        config,
        replica_index=0,
        api_key="the-key",
        metrics=MetricsKeeper(),
        log_folder=tmp_path,
        on_change=lambda: None,
        extra_environment={},
    )


def test_model_kwargs_are_its_flags_and_the_key_is_in_the_environment(tmp_path):
    """As with vLLM."""
    made = server(tmp_path, latency_ms=5, ignore_sigterm=True)
    program = [sys.executable, "-m", "airflow_provider_rollout.engine.serving.dummy"]
    options = ["--host", "127.0.0.1", "--port", "9", "--model", "m", "--latency-ms", "5", "--ignore-sigterm"]
    assert made.command(9) == program + options
    assert made.environment() == {"DUMMY_API_KEY": "the-key"}
    with pytest.raises(ConfigError):
        server(tmp_path, port=1).command(9)
