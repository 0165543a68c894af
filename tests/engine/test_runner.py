"""One rank from documents to manifest, against a real server process."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import (
    Document,
    FailureBudget,
    InferenceConfig,
    InferenceRunner,
    JsonlWriter,
    ParquetWriter,
)
from airflow_provider_rollout.engine.config import ReaderConfig
from airflow_provider_rollout.engine.exceptions import (
    BadRowError,
    ConfigError,
    FailureBudgetError,
    FingerprintMismatchError,
    ServerError,
)
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.attempt import latest_attempt
from airflow_provider_rollout.engine.storage.manifest import read_run_manifest
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import read_rows


@pytest.fixture(scope="module")
def server():
    rules = [
        {"match": "refuse", "action": "status", "status": 400},
        {"match": "broken", "action": "status", "status": 500},
    ]
    with dummy_process("--faults", json.dumps(rules)) as process:
        yield process


def config(server, **changes):
    values = {"server_type": "endpoint", "endpoint_url": server.url, "model_name_or_path": "dummy"}
    return InferenceConfig(**{**values, "retry_backoff_base_sec": 0.01, "max_request_attempts": 2, **changes})


def documents(*texts):
    return [Document(text, f"id-{number}") for number, text in enumerate(texts)]


async def ask(document, generate):
    return await generate({"messages": [{"role": "user", "content": document.text}]})


async def rows_of(folder, extension="parquet"):
    store = ObjectStore.open(str(folder))
    keys = [info.key for info in await store.list() if info.key.endswith(f".{extension}") and "/" not in info.key]
    return [row for key in keys for row in read_rows(await store.get(key), extension)]


async def dead_letters(folder):
    store = ObjectStore.open(f"{folder}/_rollout/failed")
    return [json.loads(line) for info in await store.list() for line in (await store.get(info.key)).splitlines()]


def requests_seen(server):
    return sum(server.stats()["by_prompt"].values())


async def test_a_rollout_written_for_datatrove_runs_unchanged(server, tmp_path):
    """document, generate, keyword context; text, finish_reason, usage of the result."""

    async def rollout(document, generate, prefix, **kwargs):
        first = await generate(
            {"messages": [{"role": "user", "content": f"{prefix} {document.text}"}], "max_tokens": 8}
        )
        second = await generate({"messages": [{"role": "user", "content": first.text}]})
        document.metadata["seen"] = True
        return {
            "first": first.text,
            "reason": first.finish_reason,
            "tokens": first.usage["completion_tokens"] + second.usage["completion_tokens"],
        }

    runner = InferenceRunner(
        rollout,
        config(server, rollouts_per_document=2),
        ParquetWriter(tmp_path),
        shared_context={"prefix": "Q"},
        records_per_chunk=2,
    )
    manifest = await runner.run_async(documents("a", "b", "c"))
    rows = await rows_of(tmp_path)
    assert [row.text for row in rows] == ["a", "b", "c"]
    assert all(len(row.results) == 2 and row.metadata == {"seen": True} for row in rows)
    assert all(result["reason"] == "length" and result["tokens"] > 8 for row in rows for result in row.results)
    assert (manifest.documents_in, manifest.rollouts_written, manifest.requests, manifest.chunks) == (3, 6, 12, 2)
    assert (await read_run_manifest(ObjectStore.open(str(tmp_path)))).documents_written == 3


async def test_the_column_of_the_results_may_be_named_as_with_datatrove(server, tmp_path):
    """Metadata_key of the runner goes before the writer's."""
    runner = InferenceRunner(ask, config(server), ParquetWriter(tmp_path), metadata_key="answers")
    manifest = await runner.run_async(documents("a"))
    data = await ObjectStore.open(str(tmp_path)).get(manifest.outputs[0])
    assert len(read_rows(data, "parquet", "answers")[0].results) == 1


async def test_every_document_ends_once(server, tmp_path):
    """Written, failed in the dead letters with its cause, or dropped."""

    async def rollout(document, generate):
        if document.text == "drop":
            return None
        if document.text == "raise":
            raise ValueError("user's own")
        if document.text == "odd":
            return object()
        return await ask(document, generate)

    texts = ["good", "drop", "raise", "refuse", "broken", "odd", "good"]
    manifest = await InferenceRunner(rollout, config(server), ParquetWriter(tmp_path)).run_async(documents(*texts))
    assert (manifest.documents_in, manifest.documents_written) == (7, 2)
    assert (manifest.documents_failed, manifest.documents_dropped) == (4, 1)
    assert [row.id for row in await rows_of(tmp_path)] == ["id-0", "id-6"]
    causes = {
        letter["document_id"]: (letter["cause"], letter["status"], letter["attempts"])
        for letter in await dead_letters(tmp_path)
    }
    assert causes == {
        "id-2": ("ValueError", None, 1),
        "id-3": ("BadRequestError", 400, 1),
        "id-4": ("RequestRejectedError", 500, 2),
        "id-5": ("TypeError", None, 1),
    }
    assert manifest.top_causes == {
        "ValueError": 1,
        "BadRequestError 400": 1,
        "RequestRejectedError 500": 1,
        "TypeError": 1,
    }


async def test_one_failed_rollout_does_not_take_its_siblings_along(server, tmp_path):
    """The document is written with what succeeded; the failed rollout is a dead letter."""
    calls = iter(range(3))

    async def rollout(document, generate):
        if next(calls) == 1:
            raise RuntimeError("the second one")
        return await ask(document, generate)

    runner = InferenceRunner(rollout, config(server, rollouts_per_document=3), ParquetWriter(tmp_path))
    manifest = await runner.run_async(documents("a"))
    assert (manifest.documents_written, manifest.rollouts_written, manifest.rollouts_failed) == (1, 2, 1)
    assert len((await rows_of(tmp_path))[0].results) == 2
    assert [(letter["rollout_index"], letter["document_outcome"]) for letter in await dead_letters(tmp_path)] == [
        (1, "written")
    ]


async def test_two_identical_calls_are_two_requests_and_a_reused_payload_is_not_edited(server, tmp_path):
    """A payload belongs to the user; each call is its own sample."""
    payload = {"messages": [{"role": "user", "content": "the same"}]}

    async def rollout(document, generate):
        return [await generate(payload), await generate(payload)]

    before = requests_seen(server)
    await InferenceRunner(rollout, config(server), ParquetWriter(tmp_path)).run_async(documents("a"))
    assert requests_seen(server) - before == 2
    assert payload == {"messages": [{"role": "user", "content": "the same"}]}


@pytest.mark.parametrize("writer", [ParquetWriter, JsonlWriter])
async def test_odd_values_are_written_and_read_back_strict(server, tmp_path, writer):
    """100 rollouts with a lone surrogate, U+2028 and NaN."""
    odd = "a\ud83db\u2028c\u0085d"

    async def rollout(document, generate):
        document.metadata["odd"] = odd
        result = await ask(document, generate)
        return {"text": odd, "number": float("nan"), "big": 2**70, "bytes": b"x", odd: 1, "answer": result.text}

    given = [Document(odd, f"id{odd}{number}") for number in range(100)]
    output = writer(tmp_path)
    manifest = await InferenceRunner(rollout, config(server), output).run_async(given)
    rows = await rows_of(tmp_path, output.extension)
    clean = "a\ufffdb\u2028c\u0085d"
    assert manifest.documents_written == len(rows) == 100
    assert {row.text for row in rows} == {clean}
    assert rows[7].id == f"id{clean}7"
    assert rows[7].metadata == {"odd": clean}
    value = rows[7].results[0]
    assert (value["text"], value["number"], value["big"], value["bytes"], value[clean]) == (
        clean,
        None,
        str(2**70),
        "eA==",
        1,
    )


async def test_a_finished_rank_is_recognised_and_costs_nothing(server, tmp_path):
    """No request is sent and no server is started."""
    make = lambda: InferenceRunner(ask, config(server), ParquetWriter(tmp_path))  # noqa: E731
    first = await make().run_async(documents("a", "b"))
    before = requests_seen(server)
    assert await make().run_async(documents("a", "b")) == first
    assert requests_seen(server) == before


async def test_a_changed_configuration_is_refused_by_name_or_restarted(server, tmp_path):
    """Answers of two configurations never mix."""
    await InferenceRunner(ask, config(server), ParquetWriter(tmp_path), records_per_chunk=1).run_async(
        documents("a", "b")
    )
    changed = config(server, default_generation_params={"max_tokens": 1})
    with pytest.raises(FingerprintMismatchError, match="another default_generation_params"):
        await InferenceRunner(ask, changed, ParquetWriter(tmp_path), records_per_chunk=1).run_async(documents("a", "b"))
    record, _ = await latest_attempt(ObjectStore.open(f"{tmp_path}/_rollout"), 0)
    assert (record.state, record.error_class) == ("failed", "FingerprintMismatchError")
    restarted = InferenceRunner(ask, changed, ParquetWriter(tmp_path), records_per_chunk=1, on_config_change="restart")
    manifest = await restarted.run_async(documents("a", "b"))
    assert manifest.requests_sent == 2
    assert all(row.results[0]["finish_reason"] == "length" for row in await rows_of(tmp_path))


async def test_a_rerun_token_begins_anew_once(server, tmp_path):
    """The same token resumes, a new one starts over."""

    def run(token):
        return InferenceRunner(ask, config(server), ParquetWriter(tmp_path), rerun_token=token).run_async(
            documents("a", "b")
        )

    before = requests_seen(server)
    for token in (None, "one", "one", None, "two"):
        await run(token)
    assert requests_seen(server) - before == 2 * 3


async def test_failed_documents_are_asked_again_on_request_and_nothing_else_is(server, tmp_path):
    """Done chunks are opened, healed, and the manifest follows."""
    is_fixed = False

    async def rollout(document, generate):
        if document.text == "drop":
            return None
        text = "mended" if is_fixed and document.text == "refuse" else document.text
        return await generate({"messages": [{"role": "user", "content": text}]})

    async def run(**changes):
        before = requests_seen(server)
        runner = InferenceRunner(
            rollout,
            config(server),
            ParquetWriter(tmp_path),
            records_per_chunk=3,
            identity={"rollout": "fixed"},
            **changes,
        )
        given = [Document(text, "same id") for text in ("a", "refuse", "drop", "b", "c", "d", "refuse")]
        manifest = await runner.run_async(given)
        return manifest, requests_seen(server) - before

    manifest, _ = await run()
    assert (manifest.documents_written, manifest.documents_failed, manifest.documents_dropped) == (4, 2, 1)
    is_fixed = True
    manifest, sent = await run()
    assert (manifest.documents_failed, sent) == (2, 0)
    manifest, sent = await run(retry_failed=True)
    assert (manifest.documents_written, manifest.documents_failed, manifest.documents_dropped, sent) == (6, 0, 1, 2)
    assert [row.text for row in await rows_of(tmp_path)] == ["a", "refuse", "b", "c", "d", "refuse"]
    assert await dead_letters(tmp_path) == []
    manifest, sent = await run(retry_failed=True)
    assert (manifest.documents_written, sent) == (6, 0)


async def test_the_budget_ends_the_job_with_the_causes(server, tmp_path):
    """All fail, so not all are tried."""
    runner = InferenceRunner(
        ask,
        config(server, max_concurrent_documents=1),
        ParquetWriter(tmp_path),
        failure_budget=FailureBudget(max_consecutive_failures=5),
    )
    with pytest.raises(FailureBudgetError, match="BadRequestError 400: 5"):
        await runner.run_async(documents(*["refuse"] * 50))
    assert not (tmp_path / "manifest.json").exists()


async def test_ranks_share_the_shards_and_the_last_one_finishes_the_run(server, tmp_path):
    """Whichever rank is last writes manifest and _SUCCESS."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(50)))
    store = ObjectStore.open(str(output))
    for rank in (2, 0, 1):
        assert not await store.exists(layout.SUCCESS)
        await InferenceRunner(ask, config(server), ParquetWriter(output)).run_async([str(source)], rank, 3)
    assert await store.exists(layout.SUCCESS)
    run = await read_run_manifest(store)
    assert (run.documents_in, run.documents_written, len(run.outputs)) == (50, 50, 3)
    rows = [row for key in run.outputs for row in read_rows(await store.get(key), "parquet")]
    assert [row.text for row in rows] == [f"t{number}" for number in range(50)]


async def test_a_restart_with_fewer_ranks_leaves_no_chunk_of_the_others(server, tmp_path):
    """A glob over the output gives what the manifest says."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(20)))
    (tmp_path / "out").mkdir()
    (output / "notes.parquet").write_text("the user's own")
    for rank in range(4):
        await InferenceRunner(ask, config(server), ParquetWriter(output)).run_async([str(source)], rank, 4)
    restart = {"on_config_change": "restart"}
    for rank in range(2):
        await InferenceRunner(ask, config(server), ParquetWriter(output), **restart).run_async([str(source)], rank, 2)
    run = await read_run_manifest(ObjectStore.open(str(output)))
    assert (run.documents_in, run.world_size) == (20, 2)
    assert sorted(path.name for path in output.glob("*.parquet")) == [*run.outputs, "notes.parquet"]


async def test_bad_rows_end_the_job_or_are_counted(server, tmp_path):
    """The policy is a parameter; the error names shard and line."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "a"}\n[1]\n{"text": "b"}\n{"text": "\xff"}\n')
    with pytest.raises(BadRowError, match=r"in\.jsonl.*2"):
        await InferenceRunner(ask, config(server), ParquetWriter(tmp_path / "out")).run_async([str(source)])
    runner = InferenceRunner(
        ask, config(server), ParquetWriter(tmp_path / "out"), reader=ReaderConfig(on_bad_row="skip")
    )
    manifest = await runner.run_async([str(source)])
    assert (manifest.documents_in, manifest.documents_written, manifest.bad_rows) == (2, 2, 2)


async def test_the_shared_context_is_open_while_rollouts_run_and_closed_after(server, tmp_path):
    """Also when the job fails."""
    log = []

    @asynccontextmanager
    async def context():
        log.append("opened")
        try:
            yield {"pool": log}
        finally:
            log.append("closed")

    async def rollout(document, generate, pool):
        pool.append(document.text)
        return await ask(document, generate)

    runner = InferenceRunner(
        rollout,
        config(server),
        ParquetWriter(tmp_path),
        shared_context=context,
        failure_budget=FailureBudget(max_failed=0),
    )
    with pytest.raises(FailureBudgetError):
        await runner.run_async(documents("refuse"))
    assert log == ["opened", "refuse", "closed"]


async def test_wrong_credentials_end_the_job_and_not_each_document(tmp_path, monkeypatch):
    """The endpoint refuses everything; the error says what to check, and holds no key."""
    monkeypatch.setenv("DUMMY_API_KEY", "right")
    with dummy_process() as guarded:
        runner = InferenceRunner(ask, config(guarded, api_key="wrong-key"), ParquetWriter(tmp_path))
        with pytest.raises(ServerError) as caught:
            await runner.run_async(documents("a"))
    assert "wrong-key" not in str(caught.value)
    assert "401" in str(caught.value)


def test_what_is_not_async_is_refused_at_once(server, tmp_path):
    """Before anything is opened."""
    with pytest.raises(ConfigError, match="async def"):
        InferenceRunner(lambda document, generate: None, config(server), ParquetWriter(tmp_path))


def test_run_needs_no_event_loop(server, tmp_path):
    """The datatrove way to call it."""
    assert InferenceRunner(ask, config(server), JsonlWriter(tmp_path)).run(documents("a")).documents_written == 1
    assert asyncio.run(rows_of(tmp_path, "jsonl"))[0].text == "a"
