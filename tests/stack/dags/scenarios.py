"""The DAGs of the scenarios; where the data are and which server answers comes with each run's conf."""

from datetime import UTC, datetime, timedelta

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG, Asset, CronPartitionTimetable

from airflow_provider_rollout.exceptions import ROLLOUT_RETRY_POLICY
from airflow_provider_rollout.operators.inference import InferenceOperator

PLACES = {
    "source": "{{ dag_run.conf['source'] }}",
    "output": "{{ dag_run.conf['output'] }}",
    "vllm_conn_id": "model",
    "aws_conn_id": "{{ dag_run.conf.get('aws', 'store') }}",
}
ENDPOINT = {
    "server_type": "endpoint",
    "model_name_or_path": "dummy",
    "endpoint_url": "{{ dag_run.conf['url'] }}",
    "max_concurrent_generations": 2,
}
OWN_SERVER = {
    "server_type": "dummy",
    "model_name_or_path": "dummy",
    "max_concurrent_generations": 2,
    "model_kwargs": {"latency_ms": 1000},
}
RETRIED = {"retries": 2, "retry_delay": timedelta(seconds=1), "poll_interval": 1.0, "prompt_template": "{text}"}

for dag_id, config, more in (
    ("deferred", ENDPOINT, {"deferrable": True}),
    ("waiting", ENDPOINT, {"attempt_lost_after": 15.0}),
    ("deferred_own_server", OWN_SERVER, {"deferrable": True}),
    ("waiting_own_server", OWN_SERVER, {}),
    ("forced", ENDPOINT, {"force_rerun": True}),
    ("late", ENDPOINT, {"timeout": 20, "deferrable": True, "retry_policy": ROLLOUT_RETRY_POLICY}),
    ("late_retried", ENDPOINT, {"timeout": timedelta(seconds=20), "retries": 6}),
    ("lineage", ENDPOINT, {"deferrable": True}),
):
    with DAG(dag_id, schedule=None) as made:
        outlets = [Asset(f"answers_{dag_id}")]
        InferenceOperator(task_id="ask", config=config, outlets=outlets, **{**PLACES, **RETRIED, **more})
    if dag_id == "lineage":
        enable_lineage(made)

ONE_BY_ONE = {**ENDPOINT, "max_concurrent_generations": 1, "max_concurrent_documents": 1}
STRICT = {
    "failure_budget": {"max_failed": 0},
    "retry_failed": True,
    "retries": 0,
    "prompt_template": "{text}",
    "poll_interval": 1.0,
}

with DAG("strict", schedule=None):
    InferenceOperator(task_id="ask", config=ONE_BY_ONE, **PLACES, **STRICT)

with DAG("ranks", schedule=None):
    InferenceOperator.partial(
        task_id="ask",
        config=ENDPOINT,
        world_size=3,
        map_index_template="rank {{ task.rank }}",
        pool="gpu",
        deferrable=True,
        **PLACES,
        **RETRIED,
    ).expand(rank=[0, 1, 2])

# As in dags/dated_partitions.py: by the key of a partition, by a logical date, or by hand without either.
DAY = "{{ dag_run.partition_key or (dag_run.logical_date or dag_run.run_after) | ds }}"

for dag_id, schedule in (
    ("thirty_days", "@daily"),
    ("partitioned", CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d")),
):
    with DAG(
        dag_id,
        schedule=schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        end_date=datetime(2026, 1, 31, tzinfo=UTC),
        catchup=False,
        is_paused_upon_creation=True,
    ):
        InferenceOperator(
            task_id="ask",
            source=f"{{{{ var.value.days }}}}/{DAY}/*.jsonl",
            output=f"{{{{ var.value.days }}}}/answers/{DAY}",
            config={**ONE_BY_ONE, "endpoint_url": "{{ var.value.days_url }}"},
            **STRICT,
        )
