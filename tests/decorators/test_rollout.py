"""``@task.rollout``: a function at module level becomes a task, and what cannot become one is refused."""

import json

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from airflow_task import DUMMY, make_context, write_documents

from airflow_provider_rollout.decorators.rollout import rollout_task
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.reference import load_reference
from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.memory import recall

WHERE = {"source": "/in", "output": "/out", "config": DUMMY, "vllm_conn_id": None}


@rollout_task(**WHERE)
async def score(document, generate, style, threshold=1):
    """Scores a document."""
    answer = await generate({"messages": [{"role": "user", "content": f"{style}: {document.text}"}]})
    return {"text": answer.text, "style": style, "threshold": threshold}


@rollout_task(**WHERE)
async def bare(document, generate) -> dict:
    """Takes no arguments of its own, and says what it returns."""
    return {"text": document.text}


def test_the_decorator_is_found_under_task():
    """Airflow finds it by the provider's entry."""
    assert task.rollout(**WHERE)(score.function).operator_class is score.operator_class


def test_the_function_becomes_the_rollout_of_an_operator():
    """By its file and name, for the job; with its name and docstring, for people."""
    with DAG("d", schedule=None):
        operator = score(style="short").operator
    assert isinstance(operator, InferenceOperator)
    assert load_reference(operator.rollout).function.__code__ == score.function.__code__
    assert (operator.task_id, operator.doc_md, operator.custom_operator_name) == (
        "score",
        "Scores a document.",
        "@task.rollout",
    )
    assert operator.op_kwargs == {"style": "short"}


def test_the_task_is_not_async_though_the_function_is():
    """Airflow would run an async task in a loop of its own."""
    with DAG("d", schedule=None):
        assert bare().operator.is_async is False


def test_what_the_rollout_returns_does_not_split_the_tasks_result():
    """The annotation is about documents, the result about the whole run."""
    with DAG("d", schedule=None):
        assert bare().operator.multiple_outputs is False


def test_every_call_is_a_task_of_its_own():
    """As with every decorator."""
    with DAG("d", schedule=None) as dag:
        score(style="short")
        score.override(task_id="long", rank=1, world_size=2)(style="long")
        score(style="other")
    assert set(dag.task_ids) == {"score", "long", "score__1"}
    assert dag.get_task("long").rank == 1


def test_results_of_other_tasks_are_arguments():
    """And make the task wait for them."""
    with DAG("d", schedule=None) as dag:

        @task
        def choose():
            return "short"

        score(style=choose())
    assert dag.get_task("score").upstream_task_ids == {"choose"}


def test_a_decorated_task_can_be_stored():
    """The function is stored by name only; mapped over its arguments, too."""
    with DAG("d", schedule=None) as dag:
        score(style="short")
        score.partial(threshold=2).expand(style=["short", "long"])
    stored = json.dumps(DagSerialization.to_dict(dag))
    assert "score" in stored


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (score, TypeError, "missing a required argument: 'style'"),
        (lambda: score(style="x", tone="y"), TypeError, "tone"),
        (lambda: score("x"), ConfigError, r"by name, score\(name=value\)"),
    ],
)
def test_a_wrong_call_fails_when_the_dag_is_parsed(call, error, message):
    """The arguments are checked against the function's own."""
    with DAG("d", schedule=None), pytest.raises(error, match=message):
        call()


def test_what_the_job_could_not_load_is_refused_where_it_is_decorated():
    """Nested functions, lambdas and functions that are not async."""

    async def nested(document, generate):
        """Nested."""

    with pytest.raises(ConfigError, match="defined inside a function"):
        rollout_task(**WHERE)(nested)
    with pytest.raises(ConfigError, match="lambda"):
        rollout_task(**WHERE)(lambda _document, _generate: None)
    with pytest.raises(ConfigError, match="not async"):
        rollout_task(**WHERE)(make_context)


def test_a_wrong_parameter_is_refused_where_it_stands():
    """Before any call."""
    with pytest.raises(ConfigError, match="no parameter 'temprature'"):
        rollout_task(**{**WHERE, "config": {**DUMMY, "temprature": 1}})(score.function)


def test_the_job_runs_the_function_with_the_arguments_of_the_call(tmp_path, monkeypatch):
    """The worker never calls it."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "logs"))
    (tmp_path / "functions.py").write_text(
        "async def score(document, generate, style, threshold=1):\n"
        "    await generate({'messages': [{'role': 'user', 'content': document.text}]})\n"
        "    return {'style': style, 'threshold': threshold}\n"
    )
    namespace: dict = {}
    path = tmp_path / "functions.py"
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "unusual_prefix_functions"}, namespace)
    source, context = write_documents(tmp_path / "in"), make_context()
    where = {**WHERE, "source": source, "output": str(tmp_path / "out"), "output_format": "jsonl", "poll_interval": 0.2}
    with DAG("d", schedule=None):
        operator = rollout_task(**where)(namespace["score"])(style="{{ how }}").operator
    context["how"] = "short"
    operator.render_template_fields(context)
    try:
        assert operator.execute(context)["documents_written"] == 5
    finally:
        ProcessLauncher().cancel(recall(context).handle, kill_after_s=0.0)
    rows = [json.loads(line) for line in (tmp_path / "out/00000_chunk_00000.jsonl").read_text().splitlines()]
    assert [row["rollout_results"] for row in rows] == [[{"style": "short", "threshold": 1}]] * 5
