"""A worker dies while it submits a job, at every instant that matters: no second job is started, and none is lost."""

import asyncio
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.airflow_stack import wait_until
from servers.faulty_s3 import Fault
from stack.conftest import add_store, on_s3
from stack.scenario import scenario

from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.object_store import ObjectStore

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DOCUMENTS = 8
SPECS = "^PUT .*/{}/answers/_rollout/specs/"


@dataclass(frozen=True)
class Instant:
    """When the worker dies.

    Attributes:
        fault: what the store does when the spec is written, so that the instant lasts.
        specs: how many specs are stored in the end.
    """

    fault: str | None = None
    specs: int = 1


INSTANTS = {
    "before-the-intent": Instant(),
    "before-the-spec": Instant("hang"),
    "after-the-spec": Instant("held answer", specs=2),
    "after-the-launch": Instant("late"),
}


def kill_worker(stack, run, place, instant: Instant, faulty_s3) -> None:
    """Kill the process of the task at the instant."""
    task = stack.task_process(run)
    if instant.fault is not None:
        pattern = SPECS.format(Path(place.root).name)
        wait_until(
            lambda: any(re.search(pattern, seen) for seen in faulty_s3.seen), 60, "the spec is written", every_s=0.02
        )
    if instant.fault == "held answer":
        wait_until(lambda: place.launches == 1, 10, "the spec is stored", every_s=0.1)
    if instant.fault == "late":
        kill_after_launch(stack, run, place, task)
    else:
        task.kill()


def kill_after_launch(stack, run, place, task) -> None:
    """The task's supervisor, which was to tell Airflow of the job, dies too; and the job is slow to claim its rank."""
    supervisor = task.parent()
    supervisor.send_signal(signal.SIGSTOP)
    job = place.wait_job()
    job.send_signal(signal.SIGSTOP)
    supervisor.kill()
    task.kill()
    wait_until(lambda: run.task()["try_number"] == 2, 90, "the task is tried again", run.describe)
    wait_until(lambda: "is starting" in run.log(try_number=2), 60, "the job is awaited", run.describe)
    job.send_signal(signal.SIGCONT)


def started(stack, place) -> int:
    """How many jobs got a process."""
    specs = asyncio.run(ObjectStore.open(f"{place.output}/_rollout").list(layout.SPECS))
    logs = {path.stem for path in (stack.home / "scratch").rglob("*.log")}
    return len({Path(info.key).stem for info in specs} & logs)


@on_s3
def test_a_worker_that_dies_while_it_submits_starts_no_second_job_and_loses_none(stack, store_uri, faulty_s3):
    """Before it noted its intent, before the store took the spec, before it heard of that, and before Airflow heard of the job."""
    add_store(stack, "faulty", faulty_s3.endpoint_url)
    faulty_s3.faults += [Fault(SPECS.format(name), moment.fault) for name, moment in INSTANTS.items() if moment.fault]
    with ExitStack() as places, ThreadPoolExecutor(len(INSTANTS)) as threads:

        def play(name: str) -> None:
            moment = INSTANTS[name]
            place = places.enter_context(scenario(f"{store_uri}/{name}", DOCUMENTS))
            run = stack.run("waiting", aws="faulty", **place.conf)
            kill_worker(stack, run, place, moment, faulty_s3)
            run.wait(timeout_s=200)
            place.check_complete()
            counts = {"requests": place.requests, "specs": place.launches, "jobs": started(stack, place)}
            counts["attempts"] = len(place.attempts())
            expected = {"requests": DOCUMENTS, "specs": moment.specs, "jobs": 1, "attempts": 1}
            assert {name: counts} == {name: expected}, run.describe()
            assert run.task()["try_number"] == 2

        list(threads.map(play, INSTANTS))
