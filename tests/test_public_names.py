"""What a user may rely on: the names, the fields and flags that carry datatrove's names, the provider's entry."""

import importlib.metadata
import inspect
import json
from importlib.resources import files

import jsonschema
import pytest

import airflow_provider_rollout
from airflow_provider_rollout import engine
from airflow_provider_rollout.get_provider_info import get_provider_info

ENGINE_NAMES = [
    "BadRequestError",
    "Document",
    "FailureBudget",
    "InferenceConfig",
    "InferenceError",
    "InferenceResult",
    "InferenceRunner",
    "JobSpec",
    "JsonlWriter",
    "Media",
    "ParquetWriter",
    "ReaderConfig",
    "RolloutError",
]

DATATROVE_CONFIG = {
    "server_type",
    "model_name_or_path",
    "model_max_context",
    "use_chat",
    "endpoint_url",
    "api_key",
    "metric_interval",
    "tp",
    "dp",
    "pp",
    "default_generation_params",
    "rollouts_per_document",
    "max_concurrent_generations",
    "max_concurrent_documents",
    "request_timeout",
    "model_kwargs",
    "server_log_folder",
    "master_port",
}


def test_the_engine_exports_these_names_and_no_others():
    """A name that appears or disappears here is a change for users: say so in the README."""
    assert engine.__all__ == ENGINE_NAMES


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_every_exported_name_can_be_loaded(name):
    """The lazy lobby leads to the right room."""
    assert getattr(engine, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    """A typo is told as Python tells it."""
    with pytest.raises(AttributeError, match="InferenceRuner"):
        _ = engine.InferenceRuner


def test_the_config_keeps_the_names_of_datatrove():
    """A config written for datatrove's InferenceConfig is understood."""
    assert set(engine.InferenceConfig.__struct_fields__) >= DATATROVE_CONFIG


def test_the_runner_keeps_the_names_of_datatrove():
    """A pipeline written for datatrove's InferenceRunner is understood."""
    parameters = inspect.signature(engine.InferenceRunner).parameters
    expected = {
        "rollout_fn",
        "config",
        "output_writer",
        "shared_context",
        "checkpoints_dir",
        "records_per_chunk",
        "metadata_key",
        "skip_bad_requests",
    }
    assert expected <= set(parameters)
    assert inspect.iscoroutinefunction(engine.InferenceRunner.run_async)
    assert {"data", "rank", "world_size"} <= set(inspect.signature(engine.InferenceRunner.run).parameters)


def test_the_provider_info_fits_the_schema_of_airflow():
    """Airflow ignores a provider whose info does not validate."""
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(get_provider_info(), schema)


def test_the_distribution_declares_the_provider_and_the_command():
    """Without the entry points neither Airflow nor a shell finds anything."""
    distribution = importlib.metadata.distribution("airflow-provider-rollout")
    entries = {(entry.group, entry.name): entry.value for entry in distribution.entry_points}
    assert entries["apache_airflow_provider", "provider_info"].startswith("airflow_provider_rollout.get_provider_info:")
    assert entries["console_scripts", "airflow-rollout"] == "airflow_provider_rollout.engine.cli:program"
    assert airflow_provider_rollout.__version__
