"""The command line of vLLM."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.vllm import VllmServer


def server(tmp_path, **values):
    """A server that is not started."""
    config = InferenceConfig(server_type="vllm", model_name_or_path="org/model", **values)
    return VllmServer(
        config,
        replica_index=1,
        api_key="the-key",
        metrics=MetricsKeeper(),
        log_folder=tmp_path,
        on_change=lambda: None,
        extra_environment={},
    )


def test_the_defaults_are_safe(tmp_path):
    """Loopback interface, no key in sight, no code of the model's."""
    words = server(tmp_path).command(8000)
    assert words[:3] == ["vllm", "serve", "org/model"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--served-model-name") + 1] == "org/model"
    assert words[words.index("--max-model-len") + 1] == "8192"
    assert "the-key" not in " ".join(words)
    assert "--trust-remote-code" not in words
    assert "--tensor-parallel-size" not in words
    assert server(tmp_path).environment() == {"VLLM_API_KEY": "the-key"}


def test_parallelism_and_flags_follow_the_config(tmp_path):
    """Whatever model_kwargs says wins."""
    words = server(
        tmp_path,
        tp=4,
        pp=2,
        dp=2,
        trust_remote_code=True,
        server_command=["/venv/bin/vllm", "serve"],
        model_kwargs={"max_num_seqs": 64, "enable_prefix_caching": False, "max_model_len": 100},
    ).command(1)
    line = " ".join(words)
    assert line.startswith("/venv/bin/vllm serve org/model ")
    for part in (
        "--tensor-parallel-size 4",
        "--pipeline-parallel-size 2",
        "--data-parallel-size 2",
        "--max-num-seqs 64",
    ):
        assert part in line
    assert "--no-enable-prefix-caching" in words
    assert "--max-model-len 100" in line
    assert words.count("--max-model-len") == 1
    assert "--trust-remote-code" in words
    assert "--data-parallel-rpc-port 9811" in line, "replica 1 has a port of its own"


def test_replicas_have_a_compile_cache_each(tmp_path, monkeypatch):
    """Starting together, they would corrupt a shared one."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/cache")
    assert server(tmp_path, replicas=2).environment()["VLLM_CACHE_ROOT"] == "/cache/replica_1"


def test_after_two_failed_starts_the_compile_cache_is_an_empty_one(tmp_path, monkeypatch):
    """A corrupt cache would fail every start; the empty one goes with the job, and stays for its later starts."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/cache")
    made = server(tmp_path, replicas=2)
    made.start_failed()
    assert made.environment()["VLLM_CACHE_ROOT"] == "/cache/replica_1"
    made.start_failed()
    assert made.environment()["VLLM_CACHE_ROOT"] == str(tmp_path / "vllm_cache_1")


@pytest.mark.parametrize("name", ["api_key", "port", "host", "served_model_name"])
def test_what_the_engine_decides_cannot_be_set(tmp_path, name):
    """The port is chosen anew at each start; a key would be visible to all."""
    with pytest.raises(ConfigError, match=name):
        server(tmp_path, model_kwargs={name: "x"}).command(1)


def test_flags_for_comfort_are_dropped_when_a_version_refuses_the_command(tmp_path):
    """Once; a second refusal is about the user's flags."""
    made = server(tmp_path)
    assert "--disable-uvicorn-access-log" in made.command(1)
    assert made.may_drop_flags()
    assert "--disable-uvicorn-access-log" not in made.command(1)
    assert not made.may_drop_flags()
