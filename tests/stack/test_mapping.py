"""Ranks as mapped tasks: readable, cleared one by one, and no more of them than a pool has slots, deferred ones included."""

import pytest
from servers.airflow_stack import wait_until
from stack.conftest import on_s3
from stack.scenario import scenario, write_shard

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@on_s3
def test_ranks_in_a_pool_and_clearing_one_of_them(stack, store_uri):
    """Clearing one index runs that rank alone, and costs no request; a deferred task keeps its slot of the pool."""
    with scenario(store_uri, 0, "--latency-ms", 500) as place:
        for shard in range(3):
            write_shard(store_uri, f"{shard}.jsonl", [f"{shard}-{number}" for number in range(6)])
        run = stack.run("ranks", **place.conf)
        at_work: list[int] = []

        def ended() -> bool:
            states = [task["state"] for task in run.tasks()]
            at_work.append(sum(state in {"queued", "running", "deferred"} for state in states))
            return len(states) == 3 and set(states) == {"success"}

        wait_until(ended, 180, "all ranks are done", run.describe)
        assert max(at_work) == 2  # the pool "gpu" has two slots and counts deferred tasks
        assert [task["rendered_map_index"] for task in run.tasks()] == ["rank 0", "rank 1", "rank 2"]
        assert place.requests == 18
        assert [run.result(map_index=rank)["documents_in"] for rank in range(3)] == [6, 6, 6]

        run.clear(["ask", 1])
        wait_until(lambda: run.task(map_index=1)["try_number"] == 2, 60, "rank 1 runs again")
        run.wait()
        assert [task["try_number"] for task in run.tasks()] == [1, 2, 1]
        assert place.requests == 18
        assert run.result(map_index=1)["resumed"] == 6
        assert place.exists("_SUCCESS")
