"""Fixtures that several rooms share."""

from airflow_home import airflow_db  # noqa: F401 - sets up an Airflow of its own before anything imports Airflow
from hypothesis import HealthCheck, settings
from s3_fixtures import faulty_s3, s3, store_uri  # noqa: F401 - fixtures, found here by name

# How long one example takes tells how busy the machine is, and nothing about the code.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
