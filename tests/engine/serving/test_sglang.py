"""The command line of SGLang."""

from __future__ import annotations

import stat
from pathlib import Path

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.sglang import SglangServer


def server(tmp_path, **values):
    """A server that is not started."""
    config = InferenceConfig(server_type="sglang", model_name_or_path="org/model", **values)
    return SglangServer(
        config,
        replica_index=0,
        api_key="the-key",
        metrics=MetricsKeeper(),
        log_folder=tmp_path,
        on_change=lambda: None,
        extra_environment={},
    )


def test_the_key_is_in_a_file_that_only_the_user_can_read(tmp_path):
    """And not on the command line; the file goes with the server."""
    made = server(tmp_path)
    words = made.command(8000)
    path = Path(words[words.index("--config") + 1])
    assert "the-key" not in " ".join(words)
    assert path.read_text() == 'api-key: "the-key"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    made.command(8001)
    made.close()
    assert not path.exists()


def test_parallelism_and_flags_follow_the_config(tmp_path):
    """SGLang's switches have no negative form."""
    made = server(tmp_path, tp=2, model_kwargs={"mem_fraction_static": 0.8, "disable_radix_cache": False})
    line = " ".join(made.command(8000))
    made.close()
    for part in (
        "-m sglang.launch_server",
        "--model-path org/model --host 127.0.0.1 --port 8000 --served-model-name org/model",
        "--context-length 8192",
        "--tp-size 2",
        "--dist-init-addr 127.0.0.1:9810",
        "--mem-fraction-static 0.8",
    ):
        assert part in line
    assert "radix" not in line
