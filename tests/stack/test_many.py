"""Two hundred deferred tasks in one triggerer: their polls do not hold up its event loop."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from airflow_task import write_record
from servers.airflow_stack import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DAGS = [f"many_{first}" for first in range(0, 200, 10)]
TRIGGERS = 200
BEAT_S = 5.0


@contextmanager
def beating_jobs(folder: Path) -> Iterator[None]:
    """The records of two hundred jobs, each written again every five seconds, as a job does."""
    ended = threading.Event()

    def write(number: int, beat: int) -> None:
        totals = {"documents_written": beat, "requests_sent": 3 * beat, "completion_tokens": 70 * beat}
        write_record(folder / str(number), heartbeat=beat, totals=totals, queues={"in_flight": beat % 7})

    def beat_on() -> None:
        started_s, written = time.monotonic(), 0
        while not ended.wait(max(0.0, started_s + written * BEAT_S / TRIGGERS - time.monotonic())):
            write(written % TRIGGERS, 1 + written // TRIGGERS)
            written += 1

    for number in range(TRIGGERS):
        write(number, 0)
    thread = threading.Thread(target=beat_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def told(folder: Path) -> set[tuple[Path, bytes]]:
    """What the triggers have told metrics of their jobs."""
    return {(path, path.read_bytes()) for path in folder.glob("*/reported/*.json")}


def is_of_airflow(stack: list[str]) -> bool:
    """Whether the loop stood in the triggerer's own code, not below a trigger of ours."""
    return bool(stack) and not any("airflow_provider_rollout" in place for place in stack)


def test_two_hundred_deferred_tasks_keep_the_loop_of_a_triggerer_free(stack):
    """From their start on it is late by less than 100 ms, but for other programs, the collector of garbage and Airflow's own waits."""
    watched = Path(stack.environment["ROLLOUT_WATCHED"])
    probe = watched / "probe"
    probe.mkdir(parents=True)
    with beating_jobs(watched):
        stack.run("probe")
        wait_until((probe / "begun").exists, 60, "the probe is at work")
        runs = [stack.run(dag_id) for dag_id in DAGS]
        wait_until(lambda: len(told(watched)) == TRIGGERS, 90, "all triggers have told of their jobs")
        first = told(watched)
        wait_until(lambda: not first & told(watched), 90, "all triggers have seen their jobs' hearts beat")
        (probe / "enough").touch()
        wait_until((probe / "measured").exists, 30, "the probe has ended")
        for run in runs:
            stack.ask("PATCH", f"dags/{run.dag_id}/dagRuns/{run.run_id}", {"state": "failed"})
    measured = json.loads((probe / "measured").read_text())
    late = [item for item in measured["late"] if item["own_s"] > 0.1 and not is_of_airflow(item["stack"])]
    assert late == [], measured["late"]
    assert measured["beats"] > 100
