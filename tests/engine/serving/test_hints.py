"""Advice that fits a server's last words."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.serving.hints import start_hint


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("vllm: error: unrecognized arguments: --foo", "check model_kwargs"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "gpu_memory_utilization"),
        ("OSError: [Errno 98] Address already in use", "another one"),
        ("Please pass the argument `trust_remote_code=True`", "trust_remote_code=True"),
        ("ModuleNotFoundError: No module named 'vllm'", "install it"),
    ],
)
def test_known_words_give_advice(log, advice):
    """One sentence that says what to do."""
    hint = start_hint(log)
    assert advice in hint
    assert hint.startswith(" Hint: ")
    assert hint.endswith(".")


def test_unknown_words_give_none():
    """No advice is better than a wrong one."""
    assert start_hint("segmentation fault") == ""
