"""``@task.rollout``: the decorated async function is the rollout function.

Receives: a function at module level, when the DAG is parsed.        Hands on: an InferenceOperator.
Invariant: the function is neither called nor pickled by Airflow. The job loads it by its file or module and its name, so what it could not
find there is refused when the decorator is applied.

::

    @task.rollout(source="s3://corpus/*.jsonl", output="s3://corpus/scored", config=InferenceConfig(…))
    async def score(document, generate, threshold):
        …

    score(threshold=3)      # in the DAG: arguments are the rollout's keyword arguments, templates and results of tasks among them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_rollout.engine.exceptions import ConfigError
from airflow_provider_rollout.operators.inference import InferenceOperator
from airflow_provider_rollout.operators.parameters import check_partial
from airflow_provider_rollout.operators.reference import reference_of

__all__ = ["rollout_task"]


class _RolloutDecoratedOperator(DecoratedOperator, InferenceOperator):
    """An InferenceOperator whose rollout function is the decorated one."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *InferenceOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **InferenceOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.rollout"
    is_async = False  # the function is, the task is not

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if op_args:
            raise ConfigError(
                f"{python_callable.__name__}: give the rollout's arguments by name, {python_callable.__name__}(name=value)"
            )
        super().__init__(
            # What is left to be given when the engine gives the document and generate.
            python_callable=partial(python_callable, None, None),
            op_kwargs=op_kwargs,
            rollout=reference_of(python_callable),
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        """As InferenceOperator, with the call's arguments as the rollout's keyword arguments."""
        self.rollout_kwargs = {**self.rollout_kwargs, **self.op_kwargs}
        return InferenceOperator.execute(self, context)

    def execute_complete(self, context: Context, event: Any) -> dict[str, Any]:
        """As InferenceOperator, with the call's arguments as the rollout's keyword arguments."""
        self.rollout_kwargs = {**self.rollout_kwargs, **self.op_kwargs}
        return InferenceOperator.execute_complete(self, context, event)


def rollout_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Turn an async function at module level into a rollout task.

    Args:
        python_callable: the rollout function ``(document, generate, **kwargs)``.
        **kwargs: parameters of InferenceOperator and of every task.

    Raises:
        ConfigError: the job could not load the function by name, or a parameter is wrong.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        check_partial({**kwargs, "rollout": function})
        return task_decorator_factory(
            function, multiple_outputs=False, decorated_operator_class=_RolloutDecoratedOperator, **kwargs
        )

    return decorate(python_callable) if python_callable is not None else decorate  # type: ignore[return-value]
