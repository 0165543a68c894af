"""A prompt over every document of a folder.

Runs as it is: the documents lie beside this file, and a dummy server answers. Point it at a real dataset and model with the run's
parameters, and at a GPU or an endpoint with ``ROLLOUT_SERVER_TYPE`` and the connection ``vllm_default``.
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, Param

from airflow_provider_rollout.operators.inference import InferenceOperator

DATA = Path(__file__).parent / "data"
OUTPUT = os.environ.get("ROLLOUT_OUTPUT", f"{tempfile.gettempdir()}/airflow-rollout-examples")

with DAG(
    "prompt_over_folder",
    schedule=None,
    tags=["rollout", "example"],
    params={
        "source": Param(f"{DATA}/*.jsonl", type="string", description="Shards: a glob, a folder, or an s3:// URI"),
        "output": Param(f"{OUTPUT}/summaries", type="string", description="Folder or s3:// URI for the answers"),
        "model": Param(os.environ.get("ROLLOUT_MODEL", "dummy-model"), type="string"),
        "max_tokens": Param(64, type="integer", minimum=1),
    },
):
    InferenceOperator(
        task_id="summarise",
        source="{{ params.source }}",
        # The place follows from the data and the day, never from the run's id: a second run of the day finds the work done.
        output="{{ params.output }}/{{ dag_run.run_after | ds }}",
        prompt_template="Summarise in one sentence:\n\n{text}",
        system_prompt="You are a careful editor.",
        config={
            "server_type": os.environ.get("ROLLOUT_SERVER_TYPE", "dummy"),
            "model_name_or_path": "{{ params.model }}",
            "default_generation_params": {"max_tokens": "{{ params.max_tokens }}", "temperature": 0.0},
        },
        retries=2,
        retry_delay=timedelta(seconds=10),
        outlets=[Asset("rollout_example_summaries")],
    )
