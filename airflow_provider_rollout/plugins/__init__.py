"""What the package adds to Airflow's web server."""
