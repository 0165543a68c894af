"""The DAGs of the scenarios; where the data are and which server answers comes with each run's conf."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset

from airflow_provider_rollout.operators.inference import InferenceOperator

PLACES = {"source": "{{ dag_run.conf['source'] }}", "output": "{{ dag_run.conf['output'] }}"}
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

for dag_id, config, deferrable in (
    ("deferred", ENDPOINT, True),
    ("waiting", ENDPOINT, False),
    ("deferred_own_server", OWN_SERVER, True),
    ("waiting_own_server", OWN_SERVER, False),
):
    with DAG(dag_id, schedule=None):
        InferenceOperator(
            task_id="ask",
            config=config,
            deferrable=deferrable,
            outlets=[Asset(f"answers_{dag_id}")],
            **PLACES,
            **RETRIED,
        )

STRICT = {"failure_budget": {"max_failed": 0}, "retry_failed": True, "retries": 0, "prompt_template": "{text}"}

with DAG("strict", schedule=None):
    InferenceOperator(
        task_id="ask",
        config={**ENDPOINT, "max_concurrent_generations": 1, "max_concurrent_documents": 1},
        poll_interval=1.0,
        **PLACES,
        **STRICT,
    )

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

with DAG(
    "thirty_days",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 31, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
):
    InferenceOperator(
        task_id="ask",
        source="{{ var.value.days }}/{{ ds }}/*.jsonl",
        output="{{ var.value.days }}/answers/{{ ds }}",
        config={
            **ENDPOINT,
            "endpoint_url": "{{ var.value.days_url }}",
            "max_concurrent_generations": 1,
            "max_concurrent_documents": 1,
        },
        poll_interval=1.0,
        **STRICT,
    )
