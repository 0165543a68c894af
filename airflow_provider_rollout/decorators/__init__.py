"""The task decorator."""
