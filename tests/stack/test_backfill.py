"""A backfill over dated partitions, and another for what failed: only missing work costs requests."""

import pytest
from servers.airflow_stack import wait_until
from stack.scenario import scenario, write_shard

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

DAYS = [f"2026-01-{day:02d}" for day in range(1, 31)]
BROKEN = {"2026-01-11", "2026-01-12", "2026-01-20"}
PER_DAY = 4


def backfill(stack, behavior: str) -> None:
    """Run one to its end."""
    body = {"dag_id": "thirty_days", "from_date": f"{DAYS[0]}T00:00:00Z", "to_date": f"{DAYS[-1]}T00:00:00Z"}
    body |= {"run_backwards": False, "dag_run_conf": {}, "max_active_runs": 6, "reprocess_behavior": behavior}
    made = stack.ask("POST", "backfills", body)
    wait_until(
        lambda: stack.ask("GET", f"backfills/{made['id']}")["completed_at"] is not None,
        400,
        f"the backfill ({behavior}) ends",
    )


def states(stack) -> dict[str, str]:
    """How each day ended."""
    runs = stack.ask("GET", "dags/thirty_days/dagRuns", limit=100)["dag_runs"]
    return {run["logical_date"][:10]: run["state"] for run in runs}


def test_thirty_days_with_failures_in_the_middle(stack, tmp_path):
    """The second backfill runs the three days that failed, and asks for the documents that they lack."""
    fault = '[{"match": "broken", "action": "status", "status": 400, "first": 1}]'
    with scenario(tmp_path, 1, "--faults", fault) as place:
        for day in DAYS:
            names = [f"{day} {number}" for number in range(PER_DAY)]
            if day in BROKEN:
                names[2] += " broken"
            write_shard(tmp_path / day / "shard.jsonl", names)
        for key, value in (("days", str(tmp_path)), ("days_url", place.server.url)):
            stack.ask("POST", "variables", {"key": key, "value": value})
        stack.ask("PATCH", "dags/thirty_days", {"is_paused": False})

        backfill(stack, "none")
        assert states(stack) == {day: "failed" if day in BROKEN else "success" for day in DAYS}
        assert place.requests == 27 * PER_DAY + 3 * 3  # a broken day stops at its third document

        backfill(stack, "failed")
        assert set(states(stack).values()) == {"success"}
        assert place.requests == 30 * PER_DAY + 3  # the three broken documents twice, all others once
        for day in DAYS:
            assert (tmp_path / "answers" / day / "_SUCCESS").exists()

        backfill(stack, "completed")
        assert place.requests == 30 * PER_DAY + 3
