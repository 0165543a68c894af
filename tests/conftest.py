"""Fixtures that several rooms share."""

from airflow_home import airflow_db  # noqa: F401 - sets up an Airflow of its own before anything imports Airflow
from s3_fixtures import faulty_s3, s3, store_uri  # noqa: F401 - fixtures, found here by name
