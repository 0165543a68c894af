"""When a run is refused or ended, and how soon."""

from __future__ import annotations

import json
import time

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import Document, FailureBudget, InferenceConfig, InferenceRunner, ParquetWriter
from airflow_provider_rollout.engine.exceptions import FailureBudgetError, FingerprintMismatchError


@pytest.fixture(scope="module")
def server():
    rules = [{"match": "refuse", "action": "status", "status": 400}]
    with dummy_process("--faults", json.dumps(rules)) as process:
        yield process


def config(server):
    return InferenceConfig(server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy")


async def ask(document, generate):
    return await generate({"messages": [{"role": "user", "content": document.text}]})


async def test_chunks_of_another_size_are_refused(server, tmp_path):
    """A document's number tells its chunk, so the size of chunks may not change under a run."""
    given = [Document(text, text) for text in "abc"]
    await InferenceRunner(ask, config(server), ParquetWriter(tmp_path), records_per_chunk=1).run_async(given)
    with pytest.raises(FingerprintMismatchError, match="another records_per_chunk"):
        await InferenceRunner(ask, config(server), ParquetWriter(tmp_path), records_per_chunk=2).run_async(given)


async def test_an_error_ends_the_job_though_its_input_is_slow(server, tmp_path):
    """It is not first noticed when the next document has come."""

    def slow():
        yield Document("refuse", "id")
        time.sleep(0.1)
        yield Document("fine", "id")
        time.sleep(4)

    runner = InferenceRunner(
        ask, config(server), ParquetWriter(tmp_path), failure_budget=FailureBudget(max_consecutive_failures=1)
    )
    began_s = time.monotonic()
    with pytest.raises(FailureBudgetError):
        await runner.run_async(slow())
    assert time.monotonic() - began_s < 3
