"""What Airflow may discover in this package. Imports nothing: Airflow calls it before its own configuration is ready."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's entry, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-rollout",
        "name": "Rollout",
        "description": "Runs LLM rollouts over whole datasets: GPU server, user functions, checkpoints, resume.",
        "integrations": [
            {"integration-name": "vLLM", "external-doc-url": "https://docs.vllm.ai/", "tags": ["software"]},
        ],
        "operators": [
            {"integration-name": "vLLM", "python-modules": ["airflow_provider_rollout.operators.inference"]},
        ],
        "hooks": [
            {"integration-name": "vLLM", "python-modules": ["airflow_provider_rollout.hooks.vllm"]},
        ],
        "triggers": [
            {"integration-name": "vLLM", "python-modules": ["airflow_provider_rollout.triggers.inference"]},
        ],
        "task-decorators": [
            {"class-name": "airflow_provider_rollout.decorators.rollout.rollout_task", "name": "rollout"},
        ],
        "extra-links": ["airflow_provider_rollout.links.inference.RolloutProgressLink"],
        "connection-types": [_CONNECTION],
        "cli": ["airflow_provider_rollout.commands.get_rollout_commands"],
        "config": {"rollout": {"description": "Rollout tasks and their jobs.", "options": _OPTIONS}},
    }


_OPTIONS: dict[str, Any] = {
    "poll_interval": {
        "description": "Seconds between two looks at a job, where a task does not say.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "30",
        "default": "10",
    },
    "job_log_folder": {
        "description": "Folder for the logs of jobs that run beside the worker, kept for two weeks; empty for the temporary folder.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/var/log/airflow/rollout",
        "default": "",
    },
}


_CONNECTION: dict[str, Any] = {
    "connection-type": "vllm",
    "hook-class-name": "airflow_provider_rollout.hooks.vllm.VllmHook",
    "hook-name": "vLLM",
    "ui-field-behaviour": {
        "hidden-fields": ["login"],
        "relabeling": {
            "host": "Endpoint host",
            "port": "Endpoint port",
            "schema": "Endpoint scheme",
            "password": "API key",
        },
        "placeholders": {"host": "only for a server that runs already", "port": "8000", "schema": "http"},
    },
    "conn-fields": {
        "launcher": {
            "label": "Launcher",
            "description": "Where rollout jobs run. process: beside the worker, on its GPU.",
            "schema": {"type": ["string", "null"], "default": "process"},
        },
        "vllm_command": {
            "label": "vLLM command",
            "description": "Program and first arguments that serve a model, if it is not `vllm serve` of the job's own environment. "
            "Not `docker run`: a container is no child of the job and would outlive it.",
            "schema": {"type": ["string", "null"]},
        },
    },
}
