"""A task that a test executes without a scheduler."""

import pytest
from airflow_task import DUMMY, make_context, write_documents

from airflow_provider_rollout.launchers.process import ProcessLauncher
from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.memory import recall


@pytest.fixture
def make_operator(tmp_path, monkeypatch):
    """Makes the task ``ask``; its jobs are ended with the test."""
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    source = write_documents(tmp_path / "in")
    context = make_context()

    def make(**fields) -> InferenceOperator:
        values = {"source": source, "output": str(tmp_path / "out"), "config": DUMMY, "prompt_template": "{text}"}
        return InferenceOperator(task_id="ask", **{**values, "poll_interval": 0.2, "vllm_conn_id": None, **fields})

    make.context = context
    make.source = source
    yield make
    memory = recall(context)
    if memory is not None and memory.handle is not None:
        ProcessLauncher().cancel(memory.handle, kill_after_s=0.0)
