"""What is checked when the DAG is parsed, what later, and what of a config may be stored."""

from types import SimpleNamespace

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig, JobSpec
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.operators import parameters
from airflow_provider_rollout.operators.parameters import (
    SealedConfig,
    absolute,
    check_parameters,
    check_partial,
    late_places,
    spec_digest,
    split_key,
    with_numbers,
)

DUMMY = {"server_type": "dummy", "model_name_or_path": "m"}
GOOD = {"source": ["/in"], "output": "/out", "config": DUMMY, "prompt_template": "{text}"}
XCOM = SimpleNamespace(iter_references=list)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"source": ["{{ params.source }}", "/in"], "output": "{{ ds }}"},
        {"source": XCOM, "rollout_kwargs": {"a": XCOM}},
        {
            "config": {
                "server_type": "{{ params.server }}",
                "model_name_or_path": "{{ params.model }}",
                "tp": "{{ params.tp }}",
            }
        },
        {"config": {**DUMMY, "default_generation_params": {"temperature": "{{ params.temperature }}"}}},
        {"config": {"server_type": "endpoint", "model_name_or_path": "m"}},
        {"config": {"server_type": "endpoint", "model_name_or_path": "m", "endpoint_url": "{{ conn.gpu.host }}"}},
        {"config": XCOM},
        {"config": InferenceConfig(**DUMMY)},
        {"prompt_template": "{{ params.prompt }}"},
    ],
)
def test_what_is_right_or_not_known_yet_passes(given):
    """Templates and results of other tasks are checked when the task runs."""
    check_parameters({**GOOD, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": {**DUMMY, "temprature": 1}}, "no parameter 'temprature'"),
        ({"config": {**DUMMY, "max_concurent_generations": "{{ x }}"}}, "did you mean 'max_concurrent_generations'"),
        ({"config": {**DUMMY, "tp": 0}}, "InferenceConfig.tp"),
        ({"config": {**DUMMY, "endpoint_url": "http://x"}}, "only for server_type"),
        ({"config": {"server_type": "dummy"}}, "model_name_or_path"),
        ({"config": "dummy"}, "expected an InferenceConfig or a dict"),
        ({"rollout": "module:function"}, "either rollout"),
        ({"prompt_template": None}, "either rollout"),
        ({"rollout": "function", "prompt_template": None}, "not of the form package.module:name"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"records_per_chunk": 0}, "records_per_chunk"),
        ({"output_format": "csv"}, "output_format"),
        ({"failure_budget": {"max_faild": 1}}, "did you mean 'max_failed'"),
        ({"metadata_key": "text"}, "metadata_key"),
        ({"source": []}, "source"),
        ({"prompt_template": 'Answer as {{"a": 1} please'}, "raw"),
    ],
)
def test_what_is_known_and_wrong_fails_when_the_dag_is_parsed(given, message):
    """With the engine's own words."""
    with pytest.raises(ConfigError, match=message):
        check_parameters({**GOOD, **given})


def test_arguments_of_partial_are_checked_by_the_names_of_the_operator():
    """``partial`` sees them before anything is mapped."""
    check_partial({"task_id": "t", "prompt_template": "{text}", "config": DUMMY, "source": "/in", "world_size": 4})
    with pytest.raises(ConfigError, match="on_bad_row"):
        check_partial({**GOOD, "on_bad_row": "ignore"})
    with pytest.raises(ConfigError, match="lambda"):
        check_partial({**GOOD, "prompt_template": None, "rollout": lambda _document, _generate: None})
    with pytest.raises(ConfigError, match="xcom_pull"):
        check_partial({**GOOD, "output": XCOM})


@pytest.mark.parametrize("kind", [dict, lambda values: InferenceConfig(**values), SealedConfig])
def test_a_literal_key_is_taken_out_of_the_config(kind):
    """What remains is stored, templated and shown."""
    values, key = split_key(kind({**DUMMY, "api_key": "sk-1"}))
    assert key == "sk-1"
    assert "sk-1" not in str(values)
    assert values["model_name_or_path"] == "m"


def test_the_name_of_a_variable_is_no_key():
    """It may be stored, and must be."""
    values, key = split_key({**DUMMY, "api_key": "MY_API_KEY"})
    assert (values["api_key"], key) == ("MY_API_KEY", None)


def test_a_sealed_config_does_not_show_its_key():
    """Airflow stores the text of the arguments of a mapped task."""
    assert "sk-1" not in str(SealedConfig({**DUMMY, "api_key": "sk-1"}))


def test_numbers_that_came_through_templates_are_numbers_again():
    """Jinja gives text; only what was a template is looked at."""
    config = {
        "tp": "{{ params.tp }}",
        "use_chat": "{{ params.chat }}",
        "model_name_or_path": "{{ params.model }}",
        "default_generation_params": {"temperature": "{{ t }}", "stop": ["{{ s }}", "7"], "seed": "{{ n }}"},
    }
    places = late_places(config)
    rendered = {
        "tp": "2",
        "use_chat": "False",
        "model_name_or_path": "7",
        "default_generation_params": {"temperature": "0.5", "stop": ["END", "7"], "seed": "None"},
    }
    assert with_numbers(rendered, places) == {
        "tp": 2,
        "use_chat": False,
        "model_name_or_path": "7",
        "default_generation_params": {"temperature": 0.5, "stop": ["END", "7"], "seed": None},
    }
    assert rendered["tp"] == "2"


def test_relative_paths_are_those_of_the_worker(tmp_path, monkeypatch):
    """The job runs in another folder."""
    monkeypatch.chdir(tmp_path)
    assert absolute("data/*.jsonl") == f"{tmp_path}/data/*.jsonl"
    assert absolute("s3://bucket/x") == "s3://bucket/x"
    assert absolute("/abs") == "/abs"


def test_a_launch_does_not_change_what_a_spec_asks_for():
    """Two launches of the same work have the same digest; other parameters have another."""
    spec = JobSpec(job_id="a", **GOOD)
    assert spec_digest(spec) == spec_digest(JobSpec(job_id="b", rerun_token="t", **GOOD))
    assert spec_digest(spec) != spec_digest(JobSpec(job_id="a", **{**GOOD, "prompt_template": "{id}"}))


def test_parameters_import_nothing_heavy():
    """A DAG file is parsed every few seconds."""
    assert not {"pyarrow", "obstore", "boto3"} & set(vars(parameters))
