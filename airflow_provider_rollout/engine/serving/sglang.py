"""The command line of ``python -m sglang.launch_server``.

Receives: an InferenceConfig.        Hands on: arguments and a file that holds the key.
Invariants: bound to the loopback interface. SGLang takes its key as an argument only, which every user of the machine could read, or
from a configuration file: the key is in such a file, that only the job's user can read.
Source: SGLang documentation, server arguments, ``--config`` (read 2026-11-29). Not run here: it needs a GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_rollout.engine.serving.base import HOST, OwnedServer
from airflow_provider_rollout.engine.serving.flags import merge_flags, to_flags

__all__ = ["SglangServer"]

_RESERVED = frozenset({"host", "port", "api-key", "served-model-name", "model-path", "config"})


class SglangServer(OwnedServer):
    """An SGLang server."""

    _key_folder: tempfile.TemporaryDirectory[str] | None = None

    def command(self, port: int) -> list[str]:
        """``python -m sglang.launch_server --model-path MODEL …``, the parallelism, then ``model_kwargs``."""
        config = self.config
        flags: dict[str, Any] = {"context-length": config.model_max_context}
        sizes = {"tp-size": config.tp, "pp-size": config.pp, "dp-size": config.dp}
        flags.update({name: count for name, count in sizes.items() if count > 1})
        if config.tp * config.pp > 1:
            flags["dist-init-addr"] = f"{HOST}:{config.master_port + self.replica_index}"
        if config.trust_remote_code:
            flags["trust-remote-code"] = True
        flags = merge_flags(flags, config.model_kwargs, reserved=_RESERVED)
        return [
            *(config.server_command or [sys.executable, "-m", "sglang.launch_server"]),
            *("--config", str(self._key_file()), "--model-path", config.model_name_or_path),
            *("--host", HOST, "--port", str(port), "--served-model-name", config.model_name_or_path),
            *to_flags(flags, has_negatives=False),
        ]

    def close(self) -> None:
        """Remove the file with the key."""
        if self._key_folder is not None:
            self._key_folder.cleanup()
            self._key_folder = None

    async def keep(self) -> None:
        """As every server; the file with the key goes when it ends."""
        try:
            await super().keep()
        finally:
            self.close()

    def _key_file(self) -> Path:
        """A YAML file in a folder of mode 0700."""
        if self._key_folder is None:
            self._key_folder = tempfile.TemporaryDirectory(prefix="rollout-", ignore_cleanup_errors=True)
        path = Path(self._key_folder.name) / "sglang.yaml"
        path.touch(mode=0o600)
        path.write_text(f'api-key: "{self.api_key}"\n')
        return path
