"""Work flows on over the chunks of a rank."""

from __future__ import annotations

import asyncio

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import Document, InferenceConfig, InferenceRunner, ParquetWriter
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.object_store import ObjectStore


@pytest.fixture(scope="module")
def server():
    with dummy_process() as process:
        yield process


async def test_a_slow_document_holds_up_its_own_chunk_and_no_other(server, tmp_path):
    """Later chunks are committed while the first one waits; in the end all are in order."""
    released = asyncio.Event()

    async def rollout(document, generate):
        if document.id == "0":
            await released.wait()
        return await generate({"messages": [{"role": "user", "content": document.text}]})

    config = InferenceConfig(
        server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy", max_concurrent_generations=4
    )
    runner = InferenceRunner(rollout, config, ParquetWriter(tmp_path), records_per_chunk=5)
    given = [Document(f"text {number}", str(number)) for number in range(20)]
    running = asyncio.create_task(runner.run_async(given))
    store = ObjectStore.open(f"{tmp_path}/_rollout")
    async with asyncio.timeout(20):
        while len(await store.list(layout.chunks(0))) < 3:
            await asyncio.sleep(0.05)
    assert [layout.number(info.key) for info in await store.list(layout.chunks(0))] == [1, 2, 3]
    released.set()
    manifest = await running
    assert (manifest.documents_written, len(manifest.outputs)) == (20, 4)


async def test_an_input_of_as_many_documents_as_may_run_at_once_runs_all_at_once(server, tmp_path):
    """Each waits for all others before it asks: were one of them not begun, none would end."""
    count, all_begun, begun = 90, asyncio.Event(), 0

    async def ask_together(document, generate):
        nonlocal begun
        begun += 1
        if begun == count:
            all_begun.set()
        async with asyncio.timeout(20):
            await all_begun.wait()
        return await generate({"messages": [{"role": "user", "content": document.text}]})

    config = InferenceConfig(
        server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy", max_concurrent_generations=count
    )
    runner = InferenceRunner(ask_together, config, ParquetWriter(tmp_path))
    manifest = await runner.run_async([Document("text", str(number)) for number in range(count)])
    assert (manifest.documents_written, manifest.documents_failed) == (count, 0)
