"""The model's side of a rollout job: servers, their guard, and one request."""
