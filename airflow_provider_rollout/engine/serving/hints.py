"""What people usually do next when a server does not start. Advice only: nothing is decided by it.

Receives: the tail of a log.        Hands on: one sentence, or "".
"""

from __future__ import annotations

__all__ = ["start_hint"]

_HINTS = (
    ("unrecognized arguments", "the server does not know a flag; check model_kwargs against its version"),
    ("CUDA out of memory", "lower gpu_memory_utilization in model_kwargs or model_max_context, or raise tp"),
    ("Free memory on device", "another process holds the GPU; wait for it to end, or lower gpu_memory_utilization"),
    ("larger than the maximum number of tokens", "lower model_max_context, or raise gpu_memory_utilization"),
    ("is greater than the derived max_model_len", "the model's context is shorter; lower model_max_context"),
    ("trust_remote_code", "the model brings its own code; set trust_remote_code=True if you trust it"),
    ("Address already in use", "another process took the port first; a restart takes another one"),
    ("address already in use", "another process took the port first; a restart takes another one"),
    ("gated repo", "the model is gated; accept its terms and give HF_TOKEN to the job's environment"),
    ("Repository Not Found", "no such model, or no access to it; check model_name_or_path and HF_TOKEN"),
    ("No space left on device", "the disk is full; make room for weights and caches"),
    ("No module named", "the server's package is not installed where it runs; install it, or set server_command"),
    ("no such program", "the program is not installed; install airflow-provider-rollout[vllm], or set server_command"),
)


def start_hint(log_tail: str) -> str:
    """Advice that fits the log, with a leading space, or ""."""
    for words, advice in _HINTS:
        if words in log_tail:
            return f" Hint: {advice}."
    return ""
