# Airflow with this provider, for compose.yaml.
ARG AIRFLOW_IMAGE=apache/airflow:3.3.2
FROM ${AIRFLOW_IMAGE}

COPY --chown=airflow:0 pyproject.toml README.md LICENSE /tmp/src/
COPY --chown=airflow:0 airflow_provider_rollout /tmp/src/airflow_provider_rollout
RUN pip install --no-cache-dir /tmp/src
