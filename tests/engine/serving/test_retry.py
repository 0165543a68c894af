"""Which answers are retried, and after how long."""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    EndpointUnavailableError,
    InferenceError,
    MalformedResponseError,
    QuarantinedError,
    RequestRejectedError,
    RequestTimeoutError,
)
from airflow_provider_rollout.engine.serving.retry import (
    RetryPolicy,
    is_retryable,
    is_retryable_status,
    parse_retry_after,
    wait_before_retry_s,
)

POLICY = RetryPolicy(max_attempts=4, base_s=1.0, max_s=10.0, retry_after_max_s=100.0)
NOON_S = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 599])
def test_a_status_that_may_go_away_is_retryable(status):
    """Load, conflicts and everything of the server's own doing."""
    assert is_retryable_status(status)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 451])
def test_another_4xx_is_permanent(status):
    """The same request gets the same answer."""
    assert not is_retryable_status(status)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (RequestRejectedError, True),
        (EndpointUnavailableError, True),
        (RequestTimeoutError, True),
        (MalformedResponseError, True),
        (BadRequestError, False),
        (QuarantinedError, False),
    ],
)
def test_the_type_of_an_error_decides_and_never_its_text(kind: type[InferenceError], expected):
    """A message that speaks of a bad request changes nothing."""
    assert is_retryable(kind("BadRequestError: 400 503 timeout")) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        ("-5", 0.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("Fri, 15 Jan 2027 08:00:30 -0000", 30.0),
        ("Fri, 99 Jan 2027 08:00:30 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value, expected):
    """RFC 9110 allows both; the past means now, and rubbish means none."""
    assert parse_retry_after(value, NOON_S) == expected


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "inf"])
def test_an_absurd_retry_after_is_capped(value):
    """However long the server wants us away, the limit holds."""
    error = RequestRejectedError("x", status=429, retry_after_s=parse_retry_after(value, NOON_S))
    assert wait_before_retry_s(error, attempts=1, policy=POLICY, random01=0.0) == 100.0


def test_the_wait_grows_and_is_jittered_over_its_whole_length():
    """Full jitter: between nothing and the doubled, capped bound."""
    error = RequestRejectedError("x", status=503)
    policy = RetryPolicy(max_attempts=9000, base_s=1.0, max_s=10.0, retry_after_max_s=100.0)
    waits = [wait_before_retry_s(error, attempts=n, policy=policy, random01=0.5) for n in (1, 2, 3, 5, 2000)]
    assert waits == [0.5, 1.0, 2.0, 5.0, 5.0]
    assert wait_before_retry_s(error, attempts=3, policy=policy, random01=0.0) == 0.0


def test_clients_told_the_same_moment_do_not_return_in_the_same_moment():
    """The jitter comes on top of Retry-After, never below it."""
    error = RequestRejectedError("x", status=429, retry_after_s=3.0)
    assert wait_before_retry_s(error, attempts=1, policy=POLICY, random01=0.9) == pytest.approx(3.9)


def test_the_last_attempt_is_followed_by_no_wait():
    """Giving up is decided before sleeping."""
    assert wait_before_retry_s(RequestTimeoutError("x"), attempts=4, policy=POLICY, random01=0.5) is None
    assert wait_before_retry_s(BadRequestError("x"), attempts=1, policy=POLICY, random01=0.5) is None
