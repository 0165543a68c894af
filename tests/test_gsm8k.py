"""Real documents through the operator: GSM8K's 1,319 questions, four rollouts each.

The data set is not part of the project: point GSM8K_TEST to gsm8k_test.jsonl (one JSON object with ``question`` a line).
"""

import asyncio
import json
import os
import textwrap
from pathlib import Path

import pytest

from airflow_provider_rollout.engine.storage.manifest import read_run_manifest
from airflow_provider_rollout.engine.storage.object_store import ObjectStore
from airflow_provider_rollout.engine.storage.output import read_rows

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
GSM8K = Path(os.environ.get("GSM8K_TEST", BESIDE))

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not here; set GSM8K_TEST to its file"),
]


@pytest.mark.parametrize("deferrable", [False, True])
def test_all_questions_are_answered_four_times_in_order(airflow_db, tmp_path, deferrable):
    """Rows in input order, all rollouts, a manifest that adds up, a small XCom, whoever watches."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    name = f"gsm8k_{'deferred' if deferrable else 'watched'}"
    path = airflow_db / f"{name}.py"
    path.write_text(
        textwrap.dedent(f"""
        from airflow.sdk import DAG
        from airflow_provider_rollout.operators.inference import InferenceOperator

        with DAG("{name}", schedule=None):
            InferenceOperator(
                task_id="solve", source="{GSM8K}", output="{tmp_path}/out", text_field="question", deferrable={deferrable},
                prompt_template="Solve: {{text}}", records_per_chunk=500, poll_interval=1,
                config={{"server_type": "dummy", "model_name_or_path": "m", "rollouts_per_document": 4}},
            )
        """)
    )
    assert DagBag(str(path)).dags[name].test().state == "success"
    outputs = ObjectStore.open(str(tmp_path / "out"))
    manifest = asyncio.run(read_run_manifest(outputs))
    assert (manifest.documents_in, manifest.documents_written, manifest.rollouts_written) == (1319, 1319, 5276)
    rows = [row for key in manifest.outputs for row in read_rows(asyncio.run(outputs.get(key)), "parquet")]
    questions = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    assert [row.text for row in rows] == [question["question"] for question in questions]
    assert [row.metadata for row in rows] == [{"answer": question["answer"]} for question in questions]
    assert sum(len(row.results) for row in rows) == 5276
    with create_session() as session:
        xcoms = session.query(XComModel).filter_by(dag_id=name, key="return_value").all()
        assert [len(json.dumps(xcom.value)) < 4096 for xcom in xcoms] == [True]
