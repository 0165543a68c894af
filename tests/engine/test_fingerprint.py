"""What changes the answers changes the fingerprint, and nothing else does."""

import pytest

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.fingerprint import changed_keys, config_parts, make_job_record


def record(**changes):
    return make_job_record(
        config_parts(InferenceConfig(**{"server_type": "vllm", "model_name_or_path": "m", **changes}))
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_name_or_path": "n"}, "model_name_or_path"),
        ({"default_generation_params": {"temperature": 0.1}}, "default_generation_params"),
        ({"rollouts_per_document": 2}, "rollouts_per_document"),
        ({"use_chat": False}, "use_chat"),
        ({"model_kwargs": {"revision": "abc"}}, "model_kwargs.revision"),
    ],
)
def test_a_change_of_the_answers_is_named(change, key):
    """The refusal says which key."""
    assert changed_keys(record(), record(**change)) == [key]


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 2},
        {"request_timeout": 5.0},
        {"max_concurrent_generations": 7},
        {"model_kwargs": {"gpu_memory_utilization": 0.5}},
        {"server_start_max_retries": 0},
        {"api_key": "MY_API_KEY"},
    ],
)
def test_speed_and_place_do_not_matter(change):
    """A job may be resumed on other hardware."""
    assert record().fingerprint == record(**change).fingerprint
