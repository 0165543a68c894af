"""The dummy server as a replica: the same life as a real one, without a model.

    python -m airflow_provider_rollout.engine.serving.dummy --port 8000 --latency-ms 50 --faults faults.json

Receives: an InferenceConfig whose ``model_kwargs`` are flags of ``dummy_app``.        Hands on: arguments and environment.
"""

from __future__ import annotations

import sys

from airflow_provider_rollout.engine.serving.base import HOST, OwnedServer
from airflow_provider_rollout.engine.serving.dummy_app import main
from airflow_provider_rollout.engine.serving.flags import merge_flags, to_flags

__all__ = ["DummyServer"]

_RESERVED = frozenset({"host", "port", "model"})


class DummyServer(OwnedServer):
    """The dummy server, in a process of its own under the guard."""

    def command(self, port: int) -> list[str]:
        """``python -m …dummy``, or ``server_command``, and its flags."""
        program = self.config.server_command or [sys.executable, "-m", "airflow_provider_rollout.engine.serving.dummy"]
        flags = merge_flags({}, self.config.model_kwargs, reserved=_RESERVED)
        return [
            *program,
            *("--host", HOST, "--port", str(port), "--model", self.config.model_name_or_path),
            *to_flags(flags, has_negatives=False),
        ]

    def environment(self) -> dict[str, str]:
        """The key."""
        return {"DUMMY_API_KEY": self.api_key}


if __name__ == "__main__":
    main()
