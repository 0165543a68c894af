"""Apache Airflow provider that runs a model over a whole dataset.

The DAG author imports :class:`airflow_provider_rollout.operators.inference.InferenceOperator`; everything that runs without
Airflow lives in :mod:`airflow_provider_rollout.engine`. This module imports nothing: Airflow reads it while it discovers providers,
before its own configuration is ready.
"""

__version__ = "0.1.0"
