"""What Airflow discovers: that every class named in the provider's entry is there, and that the connection's form can be drawn."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_rollout.get_provider_info import get_provider_info

INFO = get_provider_info()


def class_names() -> list[str]:
    """Every class or function that the entry names."""
    return [
        *INFO["extra-links"],
        *INFO["cli"],
        *(decorator["class-name"] for decorator in INFO["task-decorators"]),
        *(connection["hook-class-name"] for connection in INFO["connection-types"]),
    ]


@pytest.mark.parametrize("path", class_names())
def test_every_name_in_the_entry_can_be_imported(path):
    """Airflow drops what it cannot import, with a line in a log that nobody reads."""
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("kind", ["operators", "hooks", "triggers"])
def test_every_module_in_the_entry_can_be_imported(kind):
    """The same for modules."""
    for entry in INFO[kind]:
        for module in entry["python-modules"]:
            assert importlib.import_module(module)


def test_the_connection_bears_the_names_of_its_hook():
    """The form, the hook and the default id belong to one another."""
    from airflow_provider_rollout.hooks.vllm import VllmHook

    connection = INFO["connection-types"][0]
    assert (connection["connection-type"], connection["hook-name"]) == (VllmHook.conn_type, VllmHook.hook_name)


def test_airflow_draws_the_form_of_the_connection():
    """Airflow reads the form from the entry alone, without importing the hook."""
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert {"extra__vllm__launcher", "extra__vllm__vllm_command"} <= set(manager.connection_form_widgets)
    assert manager.field_behaviours["vllm"]["relabeling"]["password"] == "API key"


def test_airflows_configuration_knows_our_section_and_its_defaults():
    """An operator may set it like any other option of Airflow's."""
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    manager.initialize_providers_configuration()
    options = dict(manager.provider_configs)["airflow-provider-rollout"]["rollout"]["options"]
    assert {name: option["default"] for name, option in options.items()} == {
        "poll_interval": "10",
        "job_log_folder": "",
    }


def test_a_configured_poll_interval_is_the_operators_default():
    """Where the task does not say."""
    program = (
        "from airflow_provider_rollout.operators.inference import InferenceOperator as O; "
        "config = {'server_type': 'dummy', 'model_name_or_path': 'm'}; "
        "print(O(task_id='t', source='s', output='o', prompt_template='p', config=config).poll_interval)"
    )
    environment = {**os.environ, "AIRFLOW__ROLLOUT__POLL_INTERVAL": "33"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout.split()[-1] == "33.0", done.stderr


def test_the_entry_is_valid_against_airflows_schema():
    """Airflow drops an entry that is not."""
    import airflow
    import jsonschema

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_a_worker_finds_the_hook_by_the_type_of_the_connection():
    """``BaseHook.get_hook`` goes this way."""
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    assert ProvidersManagerTaskRuntime().hooks["vllm"].connection_id_attribute_name == "vllm_conn_id"


def test_the_entry_is_read_without_importing_airflow():
    """Airflow reads it before its own configuration is ready."""
    program = (
        "import sys, json; from airflow_provider_rollout.get_provider_info import get_provider_info; get_provider_info(); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    )
    assert not {"airflow", "msgspec", "obstore"} & set(loaded)
