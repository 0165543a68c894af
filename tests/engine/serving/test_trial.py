"""Whose fault was it: the request's, or the server's?"""

from __future__ import annotations

import pytest

from airflow_provider_rollout.engine.exceptions import (
    BadRequestError,
    EndpointUnavailableError,
    RequestRejectedError,
)
from airflow_provider_rollout.engine.serving.lane import Lane, Life
from airflow_provider_rollout.engine.serving.trial import Trial


@pytest.fixture
def trial():
    """A request that was sent to a server of our own."""
    made = Trial()
    made.lane = Lane("x", is_owned=True, on_change=lambda: None)
    made.life = made.lane.life
    return made


def end(life: Life, at_s: float) -> None:
    """The server dies at that moment."""
    life.end()
    life.ended_at_s = at_s


def test_a_broken_connection_to_a_server_that_died_is_a_death_and_no_attempt(trial):
    """The request is replayed for nothing."""
    trial.failed(EndpointUnavailableError("x"), 10.0)
    assert (trial.attempts, trial.settle()) == (1, False)
    end(trial.life, 10.5)
    assert trial.settle()
    assert (trial.attempts, trial.deaths) == (0, 1)
    assert not trial.settle(), "each death counts once"


def test_all_attempts_on_a_dying_server_are_given_back(trial):
    """vLLM answers 500 for a second and a half after its engine has died."""
    for at_s in (10.0, 10.3, 10.9):
        trial.failed(RequestRejectedError("x", status=500), at_s)
    trial.failed(EndpointUnavailableError("x", attempts=0), 11.0)
    end(trial.life, 11.5)
    assert trial.settle()
    assert (trial.attempts, trial.deaths, trial.unsent) == (0, 1, 1)


def test_a_500_long_before_a_death_was_the_requests_own(trial):
    """Somebody else killed the server."""
    trial.failed(RequestRejectedError("x", status=500), 10.0)
    end(trial.life, 30.0)
    assert not trial.settle()
    assert (trial.attempts, trial.deaths) == (1, 0)


@pytest.mark.parametrize("error", [BadRequestError("x", status=400), RequestRejectedError("x", status=429)])
def test_a_refusal_is_no_death(trial, error):
    """The server has read the request and lives."""
    trial.failed(error, 10.0)
    end(trial.life, 10.1)
    assert not trial.settle()
    assert trial.attempts == 1


def test_an_endpoint_of_others_is_never_seen_dying(trial):
    """Its failures are attempts."""
    trial.lane = Lane("x", is_owned=False, on_change=lambda: None)
    trial.failed(EndpointUnavailableError("x"), 10.0)
    end(trial.life, 10.1)
    assert not trial.settle()
    assert trial.attempts == 1


def test_a_500_after_which_others_were_answered_was_the_requests_own(trial):
    """The server went on, and was killed by somebody else a moment later."""
    trial.failed(RequestRejectedError("x", status=500), 10.0)
    trial.life.completed_at_s = 10.2
    end(trial.life, 12.0)
    assert trial.settle(), "what was on its way already proves nothing"
    again = Trial()
    again.lane, again.life = trial.lane, Life()
    again.failed(RequestRejectedError("x", status=500), 10.0)
    again.life.completed_at_s = 11.0
    end(again.life, 12.0)
    assert not again.settle()
    assert (again.attempts, again.deaths) == (1, 0)
