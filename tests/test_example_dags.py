"""The example DAGs run as they are, and a deferred task goes all the way through Airflow."""

import json
import textwrap

import pytest

pytestmark = pytest.mark.airflow

# Deprecations and clean-up of Airflow's own test run, none of them about this package.
ignored = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Where the examples write."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def dags(airflow_db, output):
    """The example DAGs, loaded as Airflow loads them, with outputs of their own and quick looks at their jobs."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow_home import EXAMPLES

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLOUT_OUTPUT", str(output))
        bag = DagBag(str(EXAMPLES))
    assert bag.import_errors == {}
    return bag.dags


def result_of(run, task_id: str, map_index: int = -1):
    """What a task of a run has returned."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=run.run_id, task_ids=task_id, key="return_value", map_indexes=map_index)
        return XComModel.deserialize_value(session.execute(query).scalars().first())


@ignored
def test_a_prompt_over_a_folder(dags, output):
    """Every document of the folder gets an answer; a second run of the day finds the work done."""
    run = dags["prompt_over_folder"].test()
    assert run.state == "success"
    result = result_of(run, "summarise")
    assert (result["documents_in"], result["documents_written"], result["requests_sent"]) == (24, 24, 24)
    assert list(output.glob("summaries/*/_SUCCESS"))
    again = result_of(dags["prompt_over_folder"].test(), "summarise")
    assert (again["resumed"], again["fingerprint"]) == (24, result["fingerprint"])


@ignored
def test_a_rollout_of_two_calls_per_document(dags, output):
    """The function stands in the DAG file; its job finds it there."""
    run = dags["two_calls_per_document"].test()
    assert run.state == "success"
    result = result_of(run, "title_and_judgement")
    assert (result["documents_written"], result["requests_sent"]) == (24, 48)
    (chunk,) = output.glob("judged/*/*.jsonl")
    first = json.loads(chunk.read_text().splitlines()[0])
    assert set(first["rollout_results"][0]) == {"title", "judgement", "finish_reason"}


@ignored
def test_ranks_over_shards_and_the_check_of_their_manifests(dags):
    """Each rank is a mapped task; the last task adds them up."""
    run = dags["ranks_over_shards"].test()
    assert run.state == "success"
    assert {ti.map_index for ti in run.get_task_instances() if ti.task_id == "extract_facts"} == {0, 1}
    assert result_of(run, "check_manifests")["documents"] == 24


@ignored
def test_a_dated_partition_is_found_again_by_a_run_by_hand(dags, output):
    """A run of a day and one without a logical date write to the same place; the second one asks for nothing."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    run = dags["dated_partitions"].test(logical_date=now.replace(hour=0, minute=0))
    assert run.state == "success"
    first = [result_of(run, "ask", rank) for rank in range(2)]
    assert sum(result["documents_written"] for result in first) == 24
    assert (output / f"answers/{now:%Y-%m-%d}/_SUCCESS").exists()
    again = dags["dated_partitions"].test()
    assert again.state == "success"
    assert [result_of(again, "ask", rank)["resumed"] for rank in range(2)] == [
        result["documents_in"] for result in first
    ]


@ignored
def test_airflow_tells_a_running_task_that_it_runs(airflow_db):
    """What a task that got SIGTERM asks, to tell a person from a machine, is asked of Airflow's real API; mapped or not."""
    from airflow.dag_processing.dagbag import DagBag

    path = airflow_db / "asked.py"
    path.write_text(
        textwrap.dedent("""
        from airflow.sdk import DAG, get_current_context, task
        from airflow_provider_rollout.operators.stop import is_ended_by_person

        with DAG("asked", schedule=None):

            @task
            def ask(number):
                assert not is_ended_by_person(get_current_context())

            ask.override(task_id="single")(0)
            ask.expand(number=[1, 2])
        """)
    )
    assert DagBag(str(path)).dags["asked"].test().state == "success"


@ignored
def test_a_deferred_task_fails_resumes_and_finds_its_job(airflow_db, tmp_path):
    """The first try fails for a broken document; the retry goes on with what was done, through trigger and event."""
    from airflow.dag_processing.dagbag import DagBag

    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"id": str(number), "text": f"document {number}"}) + "\n")
    path = airflow_db / "deferred.py"
    path.write_text(
        textwrap.dedent(f"""
        from datetime import timedelta
        from airflow.sdk import DAG, Asset
        from airflow_provider_rollout.operators.inference import InferenceOperator

        with DAG("deferred", schedule=None):
            InferenceOperator(
                task_id="ask", source="{tmp_path}/*.jsonl", output="{tmp_path}/out", rollout="{tmp_path}/ask.py:ask", deferrable=True,
                config={{"server_type": "dummy", "model_name_or_path": "m"}}, failure_budget={{"max_failed": 0}}, retry_failed=True,
                retries=1, retry_delay=timedelta(seconds=0), poll_interval=0.5, outlets=[Asset("answers")],
            )
        """)
    )
    (tmp_path / "ask.py").write_text(
        textwrap.dedent(f"""
        from pathlib import Path

        async def ask(document, generate):
            broken = Path("{tmp_path}/was-broken")
            if document.id == "2" and not broken.exists():
                broken.touch()
                raise ValueError("broken once")
            return (await generate({{"messages": [{{"role": "user", "content": document.text}}]}})).text
        """)
    )
    run = DagBag(str(path)).dags["deferred"].test()
    assert run.state == "success"
    result = result_of(run, "ask")
    assert (result["documents_in"], result["documents_written"]) == (3, 3)
    assert len(list((tmp_path / "out/_rollout/specs").iterdir())) == 2
