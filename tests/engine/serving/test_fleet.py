"""Which servers a config asks for, and what each gets of the machine."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.engine.metrics import MetricsKeeper
from airflow_provider_rollout.engine.serving.fleet import gpu_slices, make_servers


def config(**values):
    """A vLLM config."""
    return InferenceConfig(**{"server_type": "vllm", "model_name_or_path": "m", **values})


def test_each_replica_gets_gpus_of_its_own():
    """In the order in which they are visible."""
    slices = gpu_slices(config(replicas=2, tp=2), visible="4,5,6,7", present=None)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in slices] == ["4,5", "6,7"]
    slices = gpu_slices(config(replicas=2), visible=None, present=3)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in slices] == ["0", "1"]


def test_too_few_gpus_are_reported_before_anything_starts():
    """With both numbers."""
    with pytest.raises(ConfigError, match=r"2 replicas of 4 GPUs each need 8, and 4 are visible"):
        gpu_slices(config(replicas=2, tp=2, pp=2), visible="0,1,2,3", present=None)


@pytest.mark.parametrize(("replicas", "visible"), [(1, "0,1"), (2, None)])
def test_one_replica_and_unknown_gpus_are_left_alone(replicas, visible):
    """The server sees what the job sees."""
    assert gpu_slices(config(replicas=replicas), visible=visible, present=None) == [{}] * replicas


def test_one_server_per_replica_or_url(tmp_path, monkeypatch):
    """Named so that a log says which."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def names(**values):
        made = make_servers(config(**values), metrics=MetricsKeeper(), log_folder=tmp_path, on_change=lambda: None)
        return [server.lane.name for server in made]

    assert names(server_type="dummy", replicas=2) == ["dummy replica 0", "dummy replica 1"]
    urls = ["http://user:password@a:1", "https://b/v1"]
    assert names(server_type="endpoint", endpoint_url=urls) == ["http://a:1/v1", "https://b/v1"]


@pytest.mark.parametrize("values", [{"api_key": "two\nlines"}, {"endpoint_url": "http://h:port"}])
def test_what_cannot_be_sent_is_reported_before_anything_starts(tmp_path, values):
    """Without the key in the message."""
    with pytest.raises(ConfigError) as caught:
        make_servers(
            config(**{"server_type": "endpoint", "endpoint_url": "http://a", **values}),
            metrics=MetricsKeeper(),
            log_folder=tmp_path,
            on_change=lambda: None,
        )
    assert "lines" not in str(caught.value)


def test_a_key_whose_variable_is_not_set_is_reported_before_anything_starts(tmp_path, monkeypatch):
    """By the variable's name."""
    monkeypatch.delenv("MY_ABSENT_KEY", raising=False)
    with pytest.raises(ConfigError, match="MY_ABSENT_KEY"):
        make_servers(
            config(server_type="endpoint", endpoint_url="http://a", api_key="MY_ABSENT_KEY"),
            metrics=MetricsKeeper(),
            log_folder=tmp_path,
            on_change=lambda: None,
        )
