"""The ways to start a rollout job: each submits, asks, cancels and shows the end of the log."""
