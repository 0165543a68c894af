"""Runs a model over a dataset as one task, or as one mapped task per rank.

Receives: where the documents are, what to ask, which model.        Hands on: a job spec to the hook, and a small result to XCom.
Invariants: the rollout runs in a job of its own, never in the worker or the triggerer; ``deferrable`` only chooses who watches. A retry or
a clear finds the job of the try before and goes on with it. A worker that is told to stop by its machine leaves the job running; a
person who ends the task ends the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import Context
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_provider_rollout.engine.config import DEFAULT_RECORDS_PER_CHUNK, FailureBudget, InferenceConfig
from airflow_provider_rollout.links.inference import RolloutProgressLink
from airflow_provider_rollout.operators.lineage import lineage_of
from airflow_provider_rollout.operators.parameters import (
    SealedConfig,
    absolute,
    check_parameters,
    check_partial,
    late_places,
    split_key,
    with_numbers,
)
from airflow_provider_rollout.operators.reference import as_reference
from airflow_provider_rollout.operators.watching import WatchingOperator

if TYPE_CHECKING:
    from airflow_provider_rollout.operators.execution import Execution

__all__ = ["InferenceOperator"]


class InferenceOperator(WatchingOperator):
    """Runs an async rollout function, or a prompt, over every document of a dataset.

    Give either ``rollout`` or ``prompt_template``. Map it over ranks with ``InferenceOperator.partial(…, world_size=N).expand(rank=[…])``.
    Use ``retries`` of at least 1: a retry goes on where the job stopped.

    Args:
        source: URI, glob or folder of JSONL, Parquet or CSV shards, or a list of them. Templated.
        output: folder or URI that receives the results. Templated.
        config: the model and its server. The values of a dict are templated. An API key is better kept in the connection.
        rollout: the async function ``(document, generate, **kwargs)``, or a reference to it, ``package.module:function``.
        prompt_template: a prompt with ``{text}``, ``{id}`` and metadata fields. Templated by Airflow first.
        system_prompt: goes with ``prompt_template``. Templated.
        rollout_kwargs: keyword arguments of the rollout function, as JSON. Templated.
        shared_context: reference to a dict, callable or context manager whose value the rollout function receives too.
        vllm_conn_id: the connection that says where the GPU is. Templated.
        aws_conn_id: how S3 is reached; looked at only when a URI is on S3. None for the machine's own role. Templated.
        rank: which part of the input this task does, from 0.
        world_size: how many parts there are.
        records_per_chunk: documents per output file and checkpoint.
        checkpoints: folder or URI of the state; by default below the output. Templated.
        text_field: the column that holds a document's text.
        id_field: the column that holds its id.
        on_bad_row: "fail", or "skip" and count.
        output_format: "parquet", "jsonl" or "jsonl.zst".
        metadata_key: the column of the output that holds the results.
        failure_budget: how many documents may fail.
        retry_failed: ask again for documents that failed in an earlier try.
        on_config_change: "refuse" to resume work that was begun with other parameters, or "restart" it.
        attempt_lost_after: seconds of silence until a job of another machine, or one whose worker died while starting it, counts as lost.
        deferrable: let the triggerer watch, which frees the worker slot.
        poll_interval: seconds between two looks at the job.
        timeout: seconds, or a timedelta, until the job is cancelled.
        cancel_on_kill: whether ending the task by hand ends the job.
        durable: remember the job between tries in the task state store.
        force_rerun: do a finished rank again when the task runs again.
    """

    template_fields: Sequence[str] = (
        "source",
        "output_uri",
        "config",
        "prompt_template",
        "system_prompt",
        "rollout_kwargs",
        "checkpoints",
        "vllm_conn_id",
        "aws_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json", "rollout_kwargs": "json"}
    operator_extra_links = (RolloutProgressLink(),)
    ui_color = "#e6f4ea"
    _result: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        source: str | list[str],
        output: str,
        config: InferenceConfig | Mapping[str, Any] | SealedConfig,
        rollout: Callable[..., Any] | str | None = None,
        prompt_template: str | None = None,
        system_prompt: str | None = None,
        rollout_kwargs: Mapping[str, Any] | None = None,
        shared_context: str | None = None,
        vllm_conn_id: str | None = "vllm_default",
        aws_conn_id: str | None = "aws_default",
        rank: int = 0,
        world_size: int = 1,
        records_per_chunk: int = DEFAULT_RECORDS_PER_CHUNK,
        checkpoints: str | None = None,
        text_field: str = "text",
        id_field: str = "id",
        on_bad_row: Literal["fail", "skip"] = "fail",
        output_format: Literal["parquet", "jsonl", "jsonl.zst"] = "parquet",
        metadata_key: str = "rollout_results",
        failure_budget: FailureBudget | Mapping[str, Any] | None = None,
        retry_failed: bool = False,
        on_config_change: Literal["refuse", "restart"] = "refuse",
        attempt_lost_after: float = 60.0,
        durable: bool = True,
        force_rerun: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source, self.output_uri = source, output  # `output` is Airflow's name for the XCom of a task
        self.config, self._api_key = split_key(config)
        self.prompt_template, self.system_prompt, self.checkpoints = prompt_template, system_prompt, checkpoints
        self.rollout, self.rollout_kwargs = as_reference(rollout), rollout_kwargs or {}
        self.shared_context, self.vllm_conn_id, self.aws_conn_id = shared_context, vllm_conn_id, aws_conn_id
        self.rank, self.world_size, self.records_per_chunk = rank, world_size, records_per_chunk
        self.reader = {"text_field": text_field, "id_field": id_field, "on_bad_row": on_bad_row}
        self.output_format, self.metadata_key, self.failure_budget = output_format, metadata_key, failure_budget or {}
        self.retry_failed, self.on_config_change, self.force_rerun = retry_failed, on_config_change, force_rerun
        self.attempt_lost_after_sec, self.durable = attempt_lost_after, durable
        self._late_places = late_places(self.config)  # numbers that come through templates are text
        check_parameters(self._known_fields())

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Everything but what is mapped over; checked when the DAG is parsed, like the operator itself.

        Raises:
            ConfigError: a parameter is wrong.
        """
        check_partial(kwargs)
        if "config" in kwargs:
            config, key = split_key(kwargs["config"])
            if key is not None:
                kwargs["config"] = SealedConfig({**config, "api_key": key})
        return super().partial(**kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Go on with the job of an earlier try, or start one; then wait for its end, here or in the triggerer.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        self._result = self._execution(context).start()
        return self._result

    def execute_complete(self, context: Context, event: Any) -> dict[str, Any]:
        """Go on when the trigger has seen the job end.

        Raises:
            AirflowException: the job did not succeed; see ``exceptions``.
        """
        self._result = self._execution(context).go_on(event)
        return self._result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002 - Airflow's signature
        """For Airflow's OpenLineage provider, after a success."""
        config = self.config if isinstance(self.config, Mapping) else {}
        return lineage_of(
            source=[absolute(uri) for uri in ([self.source] if isinstance(self.source, str) else self.source)],
            output=absolute(self.output_uri),
            model=str(config.get("model_name_or_path", "")),
            server_type=str(config.get("server_type", "")),
            result=self._result,
        )

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """For Airflow's OpenLineage provider, after a failure."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def job_fields(self, context: Context) -> dict[str, Any]:
        """The fields of the job spec as rendered, with absolute paths, and with the API key in the config."""
        config = with_numbers(self.config, self._late_places)
        if self._api_key is not None:
            config["api_key"] = self.render_template(self._api_key, context)
        fields = self._known_fields()
        return {
            **fields,
            "config": config,
            "source": [absolute(uri) for uri in fields["source"]],
            "output": absolute(self.output_uri),
            "checkpoints": absolute(self.checkpoints) if self.checkpoints else None,
        }

    def _execution(self, context: Context) -> Execution:
        from airflow_provider_rollout.operators.execution import Execution  # noqa: PLC0415 - not where a DAG is parsed

        return Execution(self, context)

    def _known_fields(self) -> dict[str, Any]:
        return {
            "source": [self.source] if isinstance(self.source, str) else self.source,
            "output": self.output_uri,
            "config": self.config,
            **{name: getattr(self, name) for name in _SAME_NAME},
        }


_SAME_NAME = (
    "checkpoints", "rollout", "prompt_template", "system_prompt", "rollout_kwargs", "shared_context", "rank", "world_size",
    "records_per_chunk", "output_format", "metadata_key", "reader", "failure_budget", "retry_failed", "on_config_change",
    "attempt_lost_after_sec",
)  # fmt: skip
