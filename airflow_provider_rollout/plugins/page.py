"""The progress page: how every rank of a task's run stands, for whoever may see the task.

Receives: the ids of a task instance, and Airflow's proof of who asks.        Hands on: one HTML page, read from the state of the run.
Invariants: looking writes nothing. Where the state lies and how it is reached never comes from the request, but from what the task's
worker told Airflow of the task's rendered parameters, which nobody else can write. All text is escaped; the page loads and runs nothing.
Runs in a thread of the web server, which needs to reach the store itself; a store that does not answer holds it for a bounded time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.sdk.exceptions import AirflowException
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader
from sqlalchemy import select

from airflow_provider_rollout.engine.exceptions import ObjectNotFoundError, RolloutError
from airflow_provider_rollout.engine.run_report import duration
from airflow_provider_rollout.engine.run_state import RankStatus, RunState, Watch
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.hooks.store import store_options

__all__ = ["app", "place_of", "render"]

_ANSWER_WITHIN_S = 20.0
_STORE_ATTEMPTS = 2  # somebody waits for the page; the next refresh tries again
_REFRESH_S = 10
_RANKS_PER_REFRESH_S = 20  # a page of many ranks reads many objects, so it is read less often
_SETTLED = frozenset({"succeeded", "failed", "cancelled", "interrupted", "lost"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

app = FastAPI(title="Rollout progress", docs_url=None, redoc_url=None, openapi_url=None)
_pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
_pages.filters["duration"] = duration


@app.get(
    "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}",
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))],
)
def show(dag_id: str, run_id: str, task_id: str, map_index: int, session: SessionDep) -> HTMLResponse:
    """The page of one task instance.

    Raises:
        HTTPException: Airflow knows of no run of such a rollout task (404).
    """
    ids = (Rendered.dag_id, Rendered.run_id, Rendered.task_id, Rendered.map_index)
    wanted = (dag_id, run_id, task_id, map_index)
    parameters = session.scalar(
        select(Rendered.rendered_fields).where(*(name == value for name, value in zip(ids, wanted, strict=True)))
    )
    session.close()  # the store may take its time, and the database's connections are few
    if not isinstance(parameters, dict) or not {"output_uri", "checkpoints", "aws_conn_id"} <= parameters.keys():
        raise HTTPException(404, "Airflow keeps no parameters of a rollout task of this name; has it started?")
    mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
    names = [quote(name, safe="") for name in (dag_id, run_id, task_id)]
    facts: dict[str, Any] = {
        "task": f"{dag_id}.{task_id}" + (f"[{map_index}]" if map_index >= 0 else ""),
        "run": run_id,
        "back": "../" * 7 + "dags/{}/runs/{}/tasks/{}".format(*names) + mapped,
        "place": place_of(parameters),
    }
    return HTMLResponse(render(facts, parameters.get("aws_conn_id")), headers=_HEADERS)


def place_of(parameters: dict[str, Any]) -> str:
    """Where the state of a task lies, from its rendered parameters."""
    if parameters["checkpoints"]:
        return str(parameters["checkpoints"])
    return f"{str(parameters['output_uri']).rstrip('/')}/_rollout"


def render(facts: dict[str, Any], aws_conn_id: str | None) -> str:
    """The HTML of what the state says now, or of why it cannot be read.

    Args:
        facts: of the task: ``task``, ``run``, ``back`` (a link), ``place`` (where the state lies).
        aws_conn_id: how it is reached, if it lies on S3.
    """
    try:
        found = asyncio.run(_read(str(facts["place"]), aws_conn_id))
    except TimeoutError:
        found = {"problem": f"the store has not answered within {_ANSWER_WITHIN_S:.0f} s"}
    except ObjectNotFoundError:
        found = {"problem": "there is no state yet, or this web server does not see that folder"}
    except (RolloutError, AirflowException, OSError) as error:
        found = {"problem": str(error)}
    return _pages.get_template("progress.html").render({"refresh_s": _REFRESH_S, **facts, **found})


async def _read(place: str, aws_conn_id: str | None) -> dict[str, Any]:
    if "://" not in place and not Path(place).is_absolute():
        return {"problem": "the state lies in a folder below the worker's own; give absolute URIs to see it here"}
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        options = await asyncio.to_thread(store_options, [place], aws_conn_id)
        options = dataclasses.replace(options, max_attempts=_STORE_ATTEMPTS)
        state = RunState(ObjectStore.open(place, options, make_folder=False), None)
        ranks = await Watch(state).look()
    causes: Counter[str] = Counter()
    for rank in ranks:
        causes.update(rank.progress.record.top_causes if rank.progress.record else {})
    verdicts = Counter(rank.progress.verdict for rank in ranks)
    is_over = bool(ranks) and verdicts.keys() <= _SETTLED
    return {
        "place": state.store.uri,
        "ranks": [_row(rank) for rank in ranks],
        "verdicts": verdicts.most_common(),
        "causes": causes.most_common(10),
        "refresh_s": None if is_over else max(_REFRESH_S, len(ranks) // _RANKS_PER_REFRESH_S),
    }


def _row(rank: RankStatus) -> dict[str, Any]:
    """What a line of the table shows; the template turns what is unknown into a dash."""
    progress, record = rank.progress, rank.progress.record
    if record is None:
        return {"rank": rank.rank, "state": "not started", "verdict": progress.verdict}
    is_running = progress.verdict == "running"
    row: dict[str, Any] = {
        "rank": rank.rank,
        "attempt": record.epoch,
        "state": record.state.replace("_", " ") if is_running else progress.verdict,
        "verdict": progress.verdict,
        "done": record.documents_done,
        "total": record.documents_total,
        "resumed": record.documents_resumed,
        "failed": record.totals.get("documents_failed", 0),
        "cached": record.totals.get("cache_hits", 0),
        "heartbeat": record.updated_at[5:19].replace("T", " "),
        "host": record.process.host,
    }
    if is_running:
        row["requests_per_s"] = record.rates_per_s.get("requests_succeeded")
        row["tokens_per_s"] = record.rates_per_s.get("completion_tokens")
        row["in_flight"] = record.queues.get("in_flight", 0)
        row["left_s"] = record.eta_s
    elif progress.verdict != "succeeded":
        row["remark"] = (record.error or progress.reason).strip().partition("\n")[0]
    return row
