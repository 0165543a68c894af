"""The progress page: who may see it, where it reads, what it shows."""

import json
import socket
import textwrap
import time
from types import SimpleNamespace

import pytest
from airflow_task import write_documents, write_record

from airflow_provider_rollout.engine.progress import ProcessIdentity
from airflow_provider_rollout.links.inference import RolloutProgressLink

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def page(airflow_db):
    """The room under test; it is imported where Airflow has a database."""
    from airflow_provider_rollout.plugins import page

    return page


@pytest.fixture(scope="module")
def run_id(airflow_db, tmp_path_factory):
    """A run of two ranks, and of a task of another kind."""
    from airflow.dag_processing.dagbag import DagBag

    folder = tmp_path_factory.mktemp("run")
    source = write_documents(folder / "in")
    path = airflow_db / "looked_at.py"
    path.write_text(
        textwrap.dedent(f"""
        from airflow.sdk import DAG, task
        from airflow_provider_rollout.operators.inference import InferenceOperator

        with DAG("looked_at", schedule=None):
            InferenceOperator.partial(
                task_id="ask", source="{source}", output="{folder}/{{{{ run_id }}}}", prompt_template="{{text}}", world_size=2,
                config={{"server_type": "dummy", "model_name_or_path": "m"}}, poll_interval=0.2,
            ).expand(rank=[0, 1])

            @task
            def other():
                return 1

            other()
        """)
    )
    run = DagBag(str(path)).dags["looked_at"].test()
    assert run.state == "success"
    return run.run_id


@pytest.fixture(scope="module")
def web(airflow_db):
    """Airflow's web server, and who may look."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from fastapi.testclient import TestClient

    client = TestClient(create_app(apps="core"), base_url="http://localhost:8080")

    def look(path: str, role: str | None = "viewer", *, signed_in: bool = True):
        client.cookies.clear()
        if signed_in:
            user = SimpleAuthManagerUser(username="somebody", role=role)
            client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        return client.get(path)

    return look


def facts(place) -> dict:
    """Of a task whose state lies there."""
    return {"task": "d.ask", "run": "r", "back": "../", "place": str(place)}


def test_the_link_of_a_task_leads_to_its_page(web, run_id):
    """Whoever may see the task sees all ranks of its run, and the way back."""
    key = SimpleNamespace(dag_id="looked_at", run_id=run_id, task_id="ask", map_index=1)
    url = RolloutProgressLink().get_link(None, ti_key=key)
    answer = web(url)
    assert answer.status_code == 200
    assert "2 succeeded" in answer.text
    assert "The run is over." in answer.text
    assert answer.text.count('class="word succeeded">succeeded') == 2
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    back = answer.text.partition('<a href="')[2].partition('"')[0]
    assert answer.url.join(back).path == f"/dags/looked_at/runs/{run_id}/tasks/ask/mapped/1"


@pytest.mark.parametrize(("signed_in", "code"), [(False, 401), (True, 403)])
def test_who_may_not_see_the_task_does_not_see_its_progress(web, run_id, signed_in, code):
    """Airflow does not guard the apps of plugins by itself."""
    assert web(f"/rollout/dags/looked_at/runs/{run_id}/tasks/ask/0", role=None, signed_in=signed_in).status_code == code


@pytest.mark.parametrize("task", ["other/-1", "ask/7", "no_such_task/-1"])
def test_what_is_no_rollout_task_has_no_page(web, run_id, task):
    """Only the parameters of a rollout task say where a state lies; nothing in the request does."""
    answer = web(f"/rollout/dags/looked_at/runs/{run_id}/tasks/{task}?checkpoints=/etc&output_uri=/etc")
    assert answer.status_code == 404


def test_a_run_at_work_shows_how_far_it_is_and_is_looked_at_again(page, tmp_path):
    """Documents, failures, rates, and what is left."""
    write_record(
        tmp_path,
        state="running",
        documents_done=1500,
        documents_total=4000,
        documents_resumed=300,
        totals={"documents_failed": 3, "cache_hits": 41},
        rates_per_s={"requests_succeeded": 12.34, "completion_tokens": 4567.0},
        queues={"in_flight": 64},
        eta_s=3723.0,
        updated_at="2026-01-01T10:20:30+00:00",
        top_causes={"BadRequestError [400]": 3},
    )
    html = page.render(facts(tmp_path), None)
    for shown in (
        "1,500 of 4,000",
        "(300 before)",
        "12.3",
        "4,567",
        "64",
        "41",
        "1:02:03",
        "10:20:30",
        "BadRequestError [400]",
    ):
        assert shown in html
    assert '<meta http-equiv="refresh" content="10">' in html


def test_a_rank_that_failed_says_why_in_one_line(page, tmp_path):
    """A server's log belongs into the task's log."""
    write_record(tmp_path, state="failed", error="ServerStartError: no GPU\nTraceback of the server")
    html = page.render(facts(tmp_path), None)
    assert "ServerStartError: no GPU" in html
    assert "Traceback" not in html
    assert "http-equiv" not in html


def test_nothing_that_is_shown_is_markup(page, tmp_path):
    """Errors quote servers and documents."""
    evil = "<script>alert(1)</script>"
    host = ProcessIdentity(host=evil, boot_id="b", pid=1, start_time_s=1.0)
    write_record(tmp_path, state="failed", error=evil, process=host, top_causes={evil: 1}, updated_at=evil)
    html = page.render({**facts(tmp_path), "task": evil, "run": evil, "back": '"><script>'}, None)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)") >= 5


@pytest.mark.parametrize(
    ("place", "told"),
    [("missing", "no state yet"), ("answers/_rollout", "absolute URIs"), ("ftp://x/y", "no store of kind")],
)
def test_a_state_that_cannot_be_read_says_so_and_is_looked_at_again(page, tmp_path, place, told):
    """A folder that only the worker sees, or a task that has only just begun."""
    html = page.render(facts(tmp_path / place if place == "missing" else place), None)
    assert told in html
    assert "http-equiv" in html
    assert not (tmp_path / "missing").exists()


def test_a_place_follows_from_the_parameters(page):
    """As the operator's."""
    assert page.place_of({"checkpoints": None, "output_uri": "s3://b/out/"}) == "s3://b/out/_rollout"
    assert page.place_of({"checkpoints": "s3://b/state", "output_uri": "s3://b/out"}) == "s3://b/state"


@pytest.mark.s3
def test_a_state_on_s3_is_reached_by_the_connection_of_the_task(page, s3, monkeypatch, tmp_path):
    """As the task itself reaches it."""
    import asyncio

    from airflow_provider_rollout.engine.storage.object_store import ObjectStore

    options, bucket = s3.options(), s3.new_bucket()
    extra = {"endpoint_url": options.endpoint_url, "region_name": options.region}
    connection = {"conn_type": "aws", "login": options.access_key_id, "password": options.secret_access_key}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({**connection, "extra": extra}))
    write_record(tmp_path, state="succeeded", documents_done=7)
    (record,) = tmp_path.rglob("*.json")
    store = ObjectStore.open(f"s3://{bucket}/out/_rollout", options)
    asyncio.run(store.put(str(record.relative_to(tmp_path)), record.read_bytes()))
    html = page.render(facts(f"s3://{bucket}/out/_rollout"), "store")
    assert "1 succeeded" in html
    assert options.secret_access_key not in html


def test_a_store_that_is_away_does_not_hold_the_page(page, monkeypatch):
    """A job waits for its store for minutes; a person does not."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        extra = {"endpoint_url": f"http://127.0.0.1:{closed.getsockname()[1]}", "region_name": "us-east-1"}
        connection = {"conn_type": "aws", "login": "key", "password": "sk-secret", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(connection))
        started_s = time.monotonic()
        html = page.render(facts("s3://bucket/out/_rollout"), "away")
    assert time.monotonic() - started_s < 30
    assert "The state cannot be shown" in html
    assert "sk-secret" not in html
