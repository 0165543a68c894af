"""Several jobs on one state or one output: nothing is mixed, and no manifest names what is not there."""

from __future__ import annotations

import asyncio
import json

import pytest
from servers.rollout_job import dummy_process

from airflow_provider_rollout.engine import InferenceConfig, InferenceRunner, ParquetWriter
from airflow_provider_rollout.engine.config import FailureBudget
from airflow_provider_rollout.engine.exceptions import (
    AttemptActiveError,
    FailureBudgetError,
    FingerprintMismatchError,
    ManifestError,
)
from airflow_provider_rollout.engine.storage import layout
from airflow_provider_rollout.engine.storage.manifest import RankManifest


@pytest.fixture(scope="module")
def server():
    with dummy_process("--latency-ms", "20") as process:
        yield process


@pytest.fixture
def make(server, tmp_path):
    """A runner whose rollout raises at document 30, once chunk 1 is done, until it is healed."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"t{number}"}) + "\n" for number in range(60)))
    config = InferenceConfig(
        server_type="endpoint", endpoint_url=server.url, model_name_or_path="dummy", max_concurrent_documents=5
    )

    def run(output, *, is_ill=False, **changes):
        async def rollout(document, generate):
            if is_ill and document.text == "t30":
                while not list(tmp_path.rglob(layout.chunk(0, 1))):
                    await asyncio.sleep(0.01)
                raise RuntimeError("ill")
            return await generate({"messages": [{"role": "user", "content": document.text}]})

        runner = InferenceRunner(
            rollout,
            config,
            ParquetWriter(tmp_path / output),
            records_per_chunk=10,
            identity={"rollout": "fixed"},
            failure_budget=FailureBudget(max_failed=0),
            **changes,
        )
        return runner.run_async([str(source)])

    return run


async def test_a_state_of_its_own_belongs_to_one_output(make, tmp_path):
    """A manifest would name the chunks that lie in the other."""
    state = {"checkpoints_dir": str(tmp_path / "state")}
    with pytest.raises(FailureBudgetError):
        await make("a", is_ill=True, **state)
    assert list((tmp_path / "a").glob("*.parquet"))
    with pytest.raises(FingerprintMismatchError, match="another output"):
        await make("b", **state)
    manifest = await make("b", on_config_change="restart", **state)
    assert sorted(path.name for path in (tmp_path / "b").glob("*.parquet")) == manifest.outputs


async def test_an_output_may_move_with_its_state(make, tmp_path):
    """The state below it moves along."""
    with pytest.raises(FailureBudgetError):
        await make("a", is_ill=True)
    (tmp_path / "a").rename(tmp_path / "moved")
    manifest = await make("moved")
    assert manifest.requests_sent < 60
    assert sorted(path.name for path in (tmp_path / "moved").glob("*.parquet")) == manifest.outputs


async def test_a_chunk_that_somebody_removed_is_named_before_the_manifest(make, tmp_path):
    """What is said to be written is there."""
    with pytest.raises(FailureBudgetError):
        await make("a", is_ill=True)
    (tmp_path / "a" / "00000_chunk_00001.parquet").unlink()
    with pytest.raises(ManifestError, match=r"00000_chunk_00001\.parquet is not there"):
        await make("a")
    assert not (tmp_path / "a" / "_SUCCESS").exists()


async def test_of_runs_begun_at_once_in_one_process_one_works(make, server):
    """Their claims would be the same bytes, and each would take the other's for its own."""
    before = server.stats().get("requests", 0)
    ended = await asyncio.gather(*(make("a") for _ in range(4)), return_exceptions=True)
    manifests = [end for end in ended if isinstance(end, RankManifest)]
    assert manifests
    assert all(manifest == manifests[0] for manifest in manifests), "who comes when all is done finds it done"
    assert all(isinstance(end, (RankManifest, AttemptActiveError)) for end in ended), ended
    assert server.stats()["requests"] - before == 60
