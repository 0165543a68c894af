"""A server whose command the user gives; its life is in test_base.py."""

from __future__ import annotations

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.custom import CustomServer


def test_placeholders_are_filled_and_other_braces_stay(tmp_path):
    """JSON arguments may hold braces; the config is not touched."""
    command = ["serve", "{model}", "--at={host}:{port}", '--opts={"a": {"b": 1}}']
    config = InferenceConfig(
        server_type="custom", model_name_or_path="org/m", server_command=command, model_kwargs={"max_len": 5}
    )
    made = CustomServer(
        config,
        replica_index=0,
        api_key="the-key",
        metrics=MetricsKeeper(),
        log_folder=tmp_path,
        on_change=lambda: None,
        extra_environment={},
    )
    assert made.command(7) == ["serve", "org/m", "--at=127.0.0.1:7", '--opts={"a": {"b": 1}}', "--max-len", "5"]
    assert made.environment() == {"ROLLOUT_API_KEY": "the-key"}
    assert config.server_command == command
