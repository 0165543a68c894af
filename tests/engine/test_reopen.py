"""Opening done chunks again; what becomes of their documents is tested with the runner."""

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, ParquetWriter
from airflow_provider_rollout.engine.exceptions import CheckpointError
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.object_store import ObjectStore


@pytest.fixture(scope="module")
def server():
    with dummy_process("--faults", '[{"match": "refuse", "action": "status", "status": 400}]') as process:
        yield process


async def ask(document, generate):
    return await generate({"messages": [{"role": "user", "content": document.text}]})


async def test_an_output_object_that_is_not_the_committed_one_is_not_taken_for_it(server, tmp_path):
    """Rows that somebody has edited are not committed anew; the manifest stays as it is."""

    async def run(*, retry_failed):
        config = InferenceConfig(server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy")
        runner = InferenceRunner(ask, config, ParquetWriter(tmp_path), retry_failed=retry_failed)
        return await runner.run_async([Document("a", "1"), Document("refuse", "2")])

    manifest = await run(retry_failed=False)
    outputs = ObjectStore.open(str(tmp_path))
    await outputs.put(manifest.outputs[0], b"edited")
    with pytest.raises(CheckpointError, match=r"00000_chunk_00000\.parquet is not the object"):
        await run(retry_failed=True)
    assert await outputs.exists(layout.SUCCESS)
    assert await outputs.get(manifest.outputs[0]) == b"edited"


async def test_a_sign_in_an_id_is_not_taken_for_a_repetition(server, tmp_path):
    """Only what failed is asked again, whatever the ids of dropped documents look like."""
    given = [
        Document("drop", "a#b"),
        Document("x", "a"),
        Document("drop", "a"),
        Document("y", "a"),
        Document("refuse", "r"),
    ]

    async def rollout(document, generate):
        return None if document.text == "drop" else await ask(document, generate)

    async def run(**changes):
        config = InferenceConfig(server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy")
        return await InferenceRunner(rollout, config, ParquetWriter(tmp_path), **changes).run_async(given)

    await run()
    again = await run(retry_failed=True)
    assert (again.documents_written, again.documents_dropped, again.requests_sent) == (2, 2, 1)
