"""Wait how long before a request is sent again, or give up. Pure: clock and random number are passed in.

Receives: an HTTP status or the error of one attempt, and how often the request was sent.        Hands on: seconds, or None for give up.
Invariant: decided by status and exception type, never by text.
Source: full jitter, AWS Architecture Blog "Exponential Backoff And Jitter"; Retry-After, RFC 9110 section 10.2.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from airflow_provider_rollout.engine.config import InferenceConfig
from airflow_provider_rollout.engine.exceptions import (
    EndpointUnavailableError,
    InferenceError,
    MalformedResponseError,
    RequestRejectedError,
    RequestTimeoutError,
)

__all__ = ["RetryPolicy", "is_retryable", "is_retryable_status", "parse_retry_after", "wait_before_retry_s"]

_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})
_RETRYABLE_ERRORS = (RequestRejectedError, EndpointUnavailableError, RequestTimeoutError, MalformedResponseError)
_LARGEST_EXPONENT = 60  # 2**60 seconds is far over any cap; beyond 1023 a float overflows


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The numbers of InferenceConfig that decide about retries.

    Attributes:
        max_attempts: how often a request is sent at most.
        base_s: upper end of the first wait.
        max_s: upper end of any wait that the server did not ask for.
        retry_after_max_s: the longest Retry-After that is honoured.
    """

    max_attempts: int
    base_s: float
    max_s: float
    retry_after_max_s: float

    @classmethod
    def from_config(cls, config: InferenceConfig) -> RetryPolicy:
        """Take the numbers from a config."""
        return cls(
            config.max_request_attempts,
            config.retry_backoff_base_sec,
            config.retry_backoff_max_sec,
            config.retry_after_max_sec,
        )


def is_retryable_status(status: int) -> bool:
    """Whether an HTTP status other than 200 may go away by itself."""
    return status in _RETRYABLE_STATUSES or status >= 500


def is_retryable(error: InferenceError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, _RETRYABLE_ERRORS)


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """Read a Retry-After header.

    Args:
        value: seconds, or an HTTP-date.
        now_s: seconds since the epoch.

    Returns:
        Seconds from now, never negative, possibly infinite; None when there is no header or it is unreadable.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if moment.tzinfo is None:  # "-0000" means UTC of unknown origin, RFC 5322
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp() - now_s
    return None if math.isnan(seconds) else max(0.0, seconds)


def wait_before_retry_s(error: InferenceError, *, attempts: int, policy: RetryPolicy, random01: float) -> float | None:
    """Seconds to wait before the next attempt, or None to give up.

    Args:
        error: how the last attempt ended.
        attempts: how often the request was sent, the last attempt included.
        policy: the limits.
        random01: a random number in [0, 1).
    """
    if not is_retryable(error) or attempts >= policy.max_attempts:
        return None
    exponent = min(max(attempts - 1, 0), _LARGEST_EXPONENT)
    backoff_s = random01 * min(policy.max_s, policy.base_s * 2.0**exponent)
    if error.retry_after_s is None:
        return backoff_s
    # The jitter comes on top: clients that were told the same moment must not all return in it.
    return min(error.retry_after_s, policy.retry_after_max_s) + backoff_s
