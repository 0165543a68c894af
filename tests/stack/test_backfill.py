"""A backfill over dated partitions, and another for what failed: only missing work costs requests."""

from datetime import UTC, datetime

import pytest
from servers.airflow_stack import wait_until
from stack.scenario import scenario, write_shard

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

DAYS = [f"2026-01-{day:02d}" for day in range(1, 31)]
BROKEN = {"2026-01-11", "2026-01-12", "2026-01-20"}
PER_DAY = 4


def backfill(stack, behavior: str, *, dag_id: str = "thirty_days", last: str = DAYS[-1]) -> None:
    """Run one to its end."""
    dates = ["--from-date", DAYS[0], "--to-date", last]
    stack.command(
        "backfill", "create", "--dag-id", dag_id, *dates, "--max-active-runs", "6", "--reprocess-behavior", behavior
    )
    wait_until(
        lambda: all(item["completed_at"] for item in stack.ask("GET", "backfills", dag_id=dag_id)["backfills"]),
        400,
        f"the backfill ({behavior}) ends",
    )


def states(stack) -> dict[str, str]:
    """How each day ended."""
    runs = stack.ask("GET", "dags/thirty_days/dagRuns", limit=100)["dag_runs"]
    return {run["logical_date"][:10]: run["state"] for run in runs}


def test_thirty_days_with_failures_in_the_middle(stack, tmp_path):
    """The second backfill runs the three days that failed, and asks for what they lack; later runs of these days ask for nothing."""
    fault = '[{"match": "broken", "action": "status", "status": 400, "first": 1}]'
    with scenario(tmp_path, 0, "--faults", fault) as place:
        for day in DAYS:
            names = [f"{day} {number}" for number in range(PER_DAY)]
            if day in BROKEN:
                names[2] += " broken"
            write_shard(f"{tmp_path}/{day}", "shard.jsonl", names)
        for key, value in (("days", str(tmp_path)), ("days_url", place.server.url)):
            stack.ask("POST", "variables", {"key": key, "value": value})
        for dag_id in ("thirty_days", "partitioned"):
            stack.ask("PATCH", f"dags/{dag_id}", {"is_paused": False})

        backfill(stack, "none")
        assert states(stack) == {day: "failed" if day in BROKEN else "success" for day in DAYS}
        assert place.requests == 27 * PER_DAY + 3 * 3  # a broken day stops at its third document

        backfill(stack, "failed")
        assert set(states(stack).values()) == {"success"}
        assert place.requests == 30 * PER_DAY + 3  # the three broken documents twice, all others once
        for day in DAYS:
            assert place.exists(f"{day}/_SUCCESS")

        check_days_by_key_and_by_hand(stack, place)


def check_days_by_key_and_by_hand(stack, place) -> None:
    """A day is the same whoever runs it: a backfill by partition keys, a key by hand, or the day of a run by hand without a date."""
    asked = place.requests
    backfill(stack, "completed", dag_id="partitioned", last=DAYS[2])
    runs = stack.ask("GET", "dags/partitioned/dagRuns")["dag_runs"]
    assert [(run["logical_date"], run["partition_key"], run["state"]) for run in runs] == [
        (None, day, "success") for day in DAYS[:3]
    ]
    assert place.requests == asked

    key, today = "2026-01-31", f"{datetime.now(UTC):%Y-%m-%d}"
    for day in (key, today):
        write_shard(f"{place.root}/{day}", "shard.jsonl", [f"{day} {number}" for number in range(PER_DAY)])
    runs = [stack.run("partitioned", partition_key=key), stack.run("thirty_days")]
    for run, day in zip(runs, (key, today), strict=True):
        run.wait()
        assert run.result()["output"] == f"{place.output}/{day}"
    assert place.requests == asked + 2 * PER_DAY
