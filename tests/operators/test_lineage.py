"""What a rollout task tells OpenLineage."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from airflow_task import DUMMY, make_context, write_documents

from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.lineage import dataset_name


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://bucket/a/b/*.jsonl", ("s3://bucket", "a/b")),
        ("s3a://bucket/a/day=1/", ("s3://bucket", "a/day=1")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("gs://bucket/a.parquet", ("gs://bucket", "a.parquet")),
        ("/data/in/**/x-?.csv", ("file", "/data/in")),
        ("file:///data/in/part[0-9].csv", ("file", "/data/in")),
    ],
)
def test_datasets_are_named_as_openlineage_names_them(uri, name):
    """A glob is its folder."""
    assert dataset_name(uri) == name


def make_task(tmp_path) -> InferenceOperator:
    """A task over five documents."""
    source = write_documents(tmp_path / "in")
    return InferenceOperator(
        task_id="ask", source=source, output=str(tmp_path / "out"), prompt_template="{text}", config=DUMMY, poll_interval=0.5
    )  # fmt: skip


def test_a_task_that_succeeded_tells_what_it_read_wrote_and_asked(tmp_path):
    """Airflow's OpenLineage provider finds the method and can make an event of the facets."""
    pytest.importorskip("airflow.providers.openlineage")
    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from openlineage.client.serde import Serde

    task = make_task(tmp_path)
    result = task.execute(make_context())
    lineage = DefaultExtractor(task).extract_on_complete(SimpleNamespace(task=task))
    assert [(item.namespace, item.name) for item in lineage.inputs] == [("file", f"{tmp_path}/in")]
    (output,) = lineage.outputs
    assert (output.namespace, output.name) == ("file", f"{tmp_path}/out")
    assert output.outputFacets["outputStatistics"].rowCount == 5
    facet = Serde.to_dict(lineage.run_facets["rollout"])
    assert (facet["model"], facet["fingerprint"]) == ("m", result["fingerprint"])
    assert facet["counts"]["documents_written"] == 5


def test_a_task_that_failed_tells_what_it_was_to_do(tmp_path):
    """There are no counts then."""
    pytest.importorskip("airflow.providers.openlineage")
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    task = make_task(tmp_path)
    lineage = DefaultExtractor(task).extract_on_failure(SimpleNamespace(task=task))
    assert [item.name for item in lineage.outputs] == [f"{tmp_path}/out"]
    assert (lineage.outputs[0].outputFacets, lineage.run_facets["rollout"].counts) == ({}, {})


def test_nothing_of_openlineage_is_imported_with_the_operator():
    """It need not be installed."""
    program = (
        "import airflow.sdk, sys; before = set(sys.modules); import airflow_provider_rollout.operators.inference; "
        "print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert "openlineage" not in loaded
