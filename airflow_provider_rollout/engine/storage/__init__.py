"""The data's side of a rollout job: input shards, durable state, output."""
