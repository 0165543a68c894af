"""The operator as a DAG's author sees it: parameters, parsing, templates, waiting, stopping."""

import dataclasses
import inspect
import json
import threading
import time

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from airflow_task import DUMMY, make_context, write_documents

from airflow_provider_rollout.engine.config import FailureBudget, InferenceConfig, JobSpec
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.exceptions import RolloutCancelled, RolloutConfigError, RolloutJobLost, RolloutTimeout
from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.memory import recall

SLOW = {**DUMMY, "model_kwargs": {"latency_ms": 60000}}


@pytest.fixture
def make_operator(tmp_path, monkeypatch):
    """Makes the task ``ask``; its jobs are ended with the test."""
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    source = write_documents(tmp_path / "in")
    context = make_context()

    def make(**fields) -> InferenceOperator:
        values = {"source": source, "output": str(tmp_path / "out"), "config": DUMMY, "prompt_template": "{text}"}
        return InferenceOperator(task_id="ask", **{**values, "poll_interval": 0.2, "vllm_conn_id": None, **fields})

    make.context = context
    make.source = source
    yield make
    memory = recall(context)
    if memory is not None and memory.handle is not None:
        ProcessLauncher().cancel(memory.handle, kill_after_s=0.0)


def test_the_operator_takes_everything_that_a_job_can_be_told():
    """A field of JobSpec that no parameter sets could not be used from a DAG."""
    known = set(inspect.signature(InferenceOperator.__init__).parameters)
    own = {"job_id", "rerun_token", "reader", "attempt_lost_after_sec"}
    assert {field.name for field in dataclasses.fields(JobSpec)} - own <= known
    assert {"text_field", "id_field", "on_bad_row", "timeout", "deferrable", "cancel_on_kill", "durable"} <= known


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
    spec = operator._work(context).spec
    assert (spec.config.tp, spec.config.default_generation_params) == (2, {"max_tokens": 2})
    assert (spec.output, spec.prompt_template) == ("/tmp/answers", "Say: {text}")


def test_a_key_that_is_a_template_is_rendered_outside_of_what_airflow_shows(make_operator):
    """Rendered fields are stored and shown."""
    operator = make_operator(config={**DUMMY, "api_key": "{{ key }}"})
    context = {**make_operator.context, "key": "sk-secret"}
    operator.render_template_fields(context)
    work = operator._work(context)
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


def test_a_deferred_task_hands_its_job_to_the_trigger_and_takes_the_event_back(make_operator):
    """No secret goes along, and no timeout of Airflow comes before the trigger's own."""
    operator = make_operator(deferrable=True, timeout=300, config={**DUMMY, "api_key": "sk-secret"})
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(make_operator.context)
    _, arguments = deferral.value.trigger.serialize()
    assert "sk-secret" not in json.dumps(arguments)
    assert deferral.value.timeout.total_seconds() > 300
    assert arguments["deadline"] == pytest.approx(time.time() + 300, abs=30)
    event = _wait_for(operator, arguments["job"], make_operator.context)
    assert operator.execute_complete(make_operator.context, event)["documents_written"] == 5


def test_work_that_is_done_is_not_deferred(make_operator):
    """The job looks and ends; a deferral would take longer."""
    make_operator().execute(make_operator.context)
    result = make_operator(deferrable=True).execute(make_operator.context)
    assert result["resumed"] == 5


def test_a_wrong_spec_that_only_the_job_can_see_is_not_retried(make_operator, tmp_path):
    """The rollout does not import there."""
    (tmp_path / "broken.py").write_text("import no_such_module\nasync def ask(document, generate): ...\n")
    operator = make_operator(prompt_template=None, rollout=f"{tmp_path}/broken.py:ask")
    with pytest.raises(RolloutConfigError, match="no_such_module"):
        operator.execute(make_operator.context)


def test_the_timeout_cancels_the_job(make_operator):
    """Its work is kept; a retry resumes it."""
    operator = make_operator(timeout=1.0, config=SLOW)
    with pytest.raises(RolloutTimeout, match="deadline"):
        operator.execute(make_operator.context)
    assert ProcessLauncher().status(recall(make_operator.context).handle) == "gone"


@pytest.mark.parametrize(
    ("state", "error", "liveness"),
    [("running", RolloutJobLost, "running"), ("failed", RolloutCancelled, "gone")],
)
def test_a_machine_that_goes_away_leaves_the_job_and_a_person_ends_it(make_operator, state, error, liveness):
    """SIGTERM calls ``on_kill`` in both cases; Airflow's database tells them apart."""
    operator = make_operator(config=SLOW)
    context = {**make_operator.context, "ti": make_context(states={"r": {"ask": state}})["ti"]}
    threading.Timer(2.0, operator.on_kill).start()
    with pytest.raises(error):
        operator.execute(context)
    handle = recall(context).handle
    until_s = time.monotonic() + 20
    while ProcessLauncher().status(handle) != liveness and time.monotonic() < until_s:
        time.sleep(0.1)
    assert ProcessLauncher().status(handle) == liveness


def _wait_for(operator, job, context) -> dict:
    """The event that the trigger would send, without its wait."""
    import asyncio

    import msgspec

    from airflow_provider_rollout.hooks.watch import Job

    watcher = operator._work(context).watcher(msgspec.convert(job, Job))
    return asyncio.run(watcher.watch(poll_interval_s=0.2, deadline=None, say=lambda _: None))
