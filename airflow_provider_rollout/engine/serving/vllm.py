"""The command line of ``vllm serve``.

Receives: an InferenceConfig.        Hands on: arguments and environment.
Invariants: bound to the loopback interface; the key goes by environment, for arguments can be read by every user of the machine; no
code of the model's runs unless it was asked for.
Source: ``vllm serve --help=all`` and the runs of vLLM 0.32.0 (2026-11-29).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from airflow_provider_rollout.engine.serving.base import HOST, OwnedServer
from airflow_provider_rollout.engine.serving.flags import merge_flags, to_flags

__all__ = ["VllmServer"]

_log = logging.getLogger(__name__)

_SUSPICIOUS_STARTS = 2  # failed starts after which the cache of compiled kernels is suspect
_RESERVED = frozenset({"host", "port", "uds", "api-key", "served-model-name", "model", "config"})


class VllmServer(OwnedServer):
    """A vLLM server."""

    _has_comfort_flags = True
    _failed_starts = 0

    def command(self, port: int) -> list[str]:
        """``vllm serve MODEL --host … --port …``, the parallelism, then ``model_kwargs``."""
        config = self.config
        flags: dict[str, Any] = {"max-model-len": config.model_max_context}
        for name, count in (("tensor", config.tp), ("pipeline", config.pp), ("data", config.dp)):
            if count > 1:
                flags[f"{name}-parallel-size"] = count
        if config.dp > 1:
            flags["data-parallel-rpc-port"] = config.master_port + self.replica_index
        if config.trust_remote_code:
            flags["trust-remote-code"] = True
        if self._has_comfort_flags:
            flags["disable-uvicorn-access-log"] = True  # a line per request
        flags = merge_flags(flags, config.model_kwargs, reserved=_RESERVED)
        return [
            *(config.server_command or ["vllm", "serve"]),
            config.model_name_or_path,
            *("--host", HOST, "--port", str(port), "--served-model-name", config.model_name_or_path),
            *to_flags(flags, has_negatives=True),
        ]

    def environment(self) -> dict[str, str]:
        """The key; and a cache of compiled kernels per replica, for replicas that start together corrupt a shared one.

        After two starts that failed, the cache is an empty one below the job's scratch.
        """
        values = {"VLLM_API_KEY": self.api_key}
        if self._failed_starts == _SUSPICIOUS_STARTS:
            # A corrupt cache fails every start; nothing but an empty one tells whether it is to blame.
            values["VLLM_CACHE_ROOT"] = str(self.scratch / f"vllm_cache_{self.replica_index}")
        elif self.config.replicas > 1:
            root = self.config.server_env.get("VLLM_CACHE_ROOT") or os.environ.get("VLLM_CACHE_ROOT")
            base = Path(root) if root else Path.home() / ".cache" / "vllm"
            values["VLLM_CACHE_ROOT"] = str(base / f"replica_{self.replica_index}")
        return values

    def start_failed(self) -> None:
        """After two failed starts the next one has an empty cache of compiled kernels."""
        self._failed_starts += 1
        if self._failed_starts == _SUSPICIOUS_STARTS:
            _log.warning("%s: the next start is with an empty cache of compiled kernels", self.lane.name)

    def may_drop_flags(self) -> bool:
        """A version may not know the flags that are for comfort only; the next start is without them."""
        had, self._has_comfort_flags = self._has_comfort_flags, False
        return had
