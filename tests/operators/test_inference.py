"""The operator as a DAG's author sees it: parameters, parsing, templates, waiting, stopping."""

import asyncio
import inspect
import json
import os
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset
from airflow.serialization.serialized_objects import DagSerialization
from airflow_task import DUMMY

from airflow_provider_rollout.engine.config import FailureBudget, InferenceConfig, JobSpec
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.exceptions import RolloutConfigError
from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.memory import recall


def test_the_operator_takes_everything_that_a_job_can_be_told():
    """A field of JobSpec that no parameter sets could not be used from a DAG."""
    known = set(inspect.signature(InferenceOperator.__init__).parameters)
    own = {"job_id", "rerun_token", "reader", "attempt_lost_after_sec"}
    assert set(JobSpec.__struct_fields__) - own <= known
    assert {"text_field", "id_field", "on_bad_row", "attempt_lost_after", "durable", "force_rerun"} <= known


def test_a_wrong_parameter_fails_when_the_dag_is_parsed(make_operator):
    """Not when the GPU has been waited for."""
    with pytest.raises(ConfigError, match="did you mean 'model_name_or_path'"):
        make_operator(config={"server_type": "dummy", "model_name": "m"})
    with pytest.raises(ConfigError, match="rank"):
        make_operator(rank=3, world_size=2)
    with pytest.raises(ConfigError, match="rollout"):
        make_operator(prompt_template=None)


def test_a_wrong_parameter_of_a_mapped_task_fails_when_the_dag_is_parsed():
    """Airflow itself makes a mapped operator only when it runs."""
    values = {"task_id": "t", "source": "/in", "output": "/out", "prompt_template": "{text}"}
    with pytest.raises(ConfigError, match="no parameter 'temprature'"):
        InferenceOperator.partial(**values, config={**DUMMY, "temprature": 0.5})


def test_no_key_is_stored_with_the_dag():
    """Neither of a task nor of a mapped one, in whatever form the config is given."""
    config = {**DUMMY, "api_key": "sk-secret"}
    values = {"source": "/in", "output": "/out", "prompt_template": "{text}"}
    with DAG("d", schedule=None) as dag:
        InferenceOperator(task_id="a", config=config, **values)
        InferenceOperator(task_id="b", config=InferenceConfig(**config), **values)
        InferenceOperator.partial(task_id="c", config=config, **values).expand(rank=[0])
        InferenceOperator.partial(task_id="e", config=InferenceConfig(**config), **values).expand(rank=[0])
    assert "sk-secret" not in json.dumps(DagSerialization.to_dict(dag))


def test_the_xcom_of_the_task_is_reached_as_with_every_operator(make_operator):
    """``output`` is a parameter here and a property of every operator; both work."""
    operator = make_operator()
    assert operator.output.operator is operator
    assert operator.output_uri.endswith("/out")


def test_templates_are_rendered_and_numbers_stay_numbers(make_operator):
    """Jinja gives text; the job is told numbers."""
    operator = make_operator(
        config={**DUMMY, "tp": "{{ n }}", "default_generation_params": {"max_tokens": "{{ n }}"}},
        output="{{ where }}/answers",
        prompt_template="{{ word }}: {text}",
        rollout_kwargs={},
    )
    context = {**make_operator.context, "n": 2, "where": "/tmp", "word": "Say"}
    operator.render_template_fields(context)
    spec = operator._execution(context).work.spec
    assert (spec.config.tp, spec.config.default_generation_params) == (2, {"max_tokens": 2})
    assert (spec.output, spec.prompt_template) == ("/tmp/answers", "Say: {text}")


def test_a_key_that_is_a_template_is_rendered_outside_of_what_airflow_shows(make_operator):
    """Rendered fields are stored and shown."""
    operator = make_operator(config={**DUMMY, "api_key": "{{ key }}"})
    context = {**make_operator.context, "key": "sk-secret"}
    operator.render_template_fields(context)
    work = operator._execution(context).work
    assert work.environment["ROLLOUT_API_KEY"] == "sk-secret"
    assert work.spec.config.api_key == "ROLLOUT_API_KEY"
    shown = [getattr(operator, name) for name in operator.template_fields]
    assert "sk-secret" not in f"{shown} {work!r}"


def test_a_template_that_gives_a_wrong_value_is_not_retried(make_operator):
    """It could only be seen when the task ran."""
    operator = make_operator(config={**DUMMY, "tp": "{{ n }}"})
    context = {**make_operator.context, "n": "many"}
    operator.render_template_fields(context)
    with pytest.raises(RolloutConfigError, match=r"InferenceConfig\.tp"):
        operator.execute(context)


def test_the_worker_waits_and_returns_a_small_result(make_operator):
    """``deferrable=False``; the consumers of the outlet are told."""
    asset = Asset("answers")
    operator = make_operator(outlets=[asset], failure_budget=FailureBudget(max_failed=1))
    result = operator.execute(make_operator.context)
    counts = ("documents_in", "documents_written", "documents_failed", "rollouts", "requests_sent", "resumed")
    assert {name: result[name] for name in counts} == {
        "documents_in": 5,
        "documents_written": 5,
        "documents_failed": 0,
        "rollouts": 5,
        "requests_sent": 5,
        "resumed": 0,
    }
    assert len(json.dumps(result)) < 4096
    assert make_operator.context["outlet_events"][asset].extra["rows"] == 5
    assert recall(make_operator.context).finished


def test_a_wrong_spec_that_only_the_job_can_see_is_not_retried(make_operator, tmp_path):
    """The rollout does not import there."""
    (tmp_path / "broken.py").write_text("import no_such_module\nasync def ask(document, generate): ...\n")
    operator = make_operator(prompt_template=None, rollout=f"{tmp_path}/broken.py:ask")
    with pytest.raises(RolloutConfigError, match="no_such_module"):
        operator.execute(make_operator.context)


@pytest.mark.s3
def test_everything_may_lie_on_s3_behind_an_aws_connection(make_operator, s3, monkeypatch):
    """Source, output and state; the job, a process of its own, reaches them with the keys of the connection and nothing else."""
    options, bucket = s3.options(), s3.new_bucket()
    extra = {"endpoint_url": options.endpoint_url, "region_name": options.region}
    connection = {"conn_type": "aws", "login": options.access_key_id, "password": options.secret_access_key}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({**connection, "extra": extra}))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    text = Path(make_operator.source.removesuffix("*.jsonl"), "shard.jsonl").read_bytes()
    asyncio.run(ObjectStore.open(f"s3://{bucket}/in", options).put("shard 1.jsonl", text))
    operator = make_operator(source=f"s3://{bucket}/in/*.jsonl", output=f"s3://{bucket}/out", aws_conn_id="store")
    result = operator.execute(make_operator.context)
    assert result["documents_written"] == 5
    assert result["manifest_uri"] == f"s3://{bucket}/out/_rollout/manifests/00000.json"
    stored = asyncio.run(ObjectStore.open(f"s3://{bucket}/out", options).list())
    assert {"manifest.json", "_SUCCESS", "00000_chunk_00000.parquet"} <= {info.key for info in stored}
    assert options.secret_access_key not in json.dumps(recall(make_operator.context).handle)
