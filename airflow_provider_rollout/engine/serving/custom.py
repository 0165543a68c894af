"""A server whose whole command the job's author gives.

Receives: ``server_command`` with ``{port}``, ``{host}`` and ``{model}``.        Hands on: arguments and environment.
The key is in the environment as ``ROLLOUT_API_KEY`` and is sent with every request; the server may ask for it or not.
"""

from __future__ import annotations

from airflow_provider_rollout.engine.serving.base import HOST, OwnedServer
from airflow_provider_rollout.engine.serving.flags import merge_flags, to_flags

__all__ = ["CustomServer"]


class CustomServer(OwnedServer):
    """Any program that speaks OpenAI's API; without /v1/models it counts as ready when it answers at all."""

    takes_key = False

    def command(self, port: int) -> list[str]:
        """The command with its placeholders filled, then ``model_kwargs``."""
        values = {"{port}": str(port), "{host}": HOST, "{model}": self.config.model_name_or_path}
        words = list(self.config.server_command or [])
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        return words + to_flags(merge_flags({}, self.config.model_kwargs, reserved=frozenset()), has_negatives=False)

    def environment(self) -> dict[str, str]:
        """The key."""
        return {"ROLLOUT_API_KEY": self.api_key}
