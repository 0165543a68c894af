"""What has happened to one request so far: how often it was sent, and how many server deaths it was in flight at.

Receives: failures and the lives in which they happened.        Hands on: the counts that decide about the next attempt.
Invariant: an attempt that ended because the server died is not one of the request's own, and each death counts once per request.
"""

from __future__ import annotations

from airflow_provider_rollout.engine.exceptions import EndpointUnavailableError, InferenceError
from airflow_provider_rollout.engine.serving.lane import Lane, Life

__all__ = ["ALONE_AT_DEATHS", "DEATHS_OF_ONE", "Trial"]

ALONE_AT_DEATHS = 2
"""From so many deaths on a request is suspect and has the replica for itself."""
DEATHS_OF_ONE = 3
"""So many deaths, the last of them alone, prove it: the request kills servers."""

_LIVED_ON_S = 0.5  # answers that were on their way when the server began to die arrive sooner
_DYING_S = 5.0  # vLLM exits 1.4 to 1.7 s after its engine has died and every request got a 500


class Trial:
    """The history of one request.

    Attributes:
        attempts: how often it was sent, server deaths not counted.
        deaths: server deaths that it was in flight at.
        unsent: how often no connection could be made.
        lane: where it was sent last.
        life: the run of that server.
        window_index: see SlotWindow.
    """

    __slots__ = (
        "_charged",
        "_doubtful",
        "_doubtful_at_s",
        "attempts",
        "deaths",
        "lane",
        "life",
        "unsent",
        "window_index",
    )

    def __init__(self) -> None:
        self.attempts = 0
        self.deaths = 0
        self.unsent = 0
        self.lane: Lane | None = None
        self.life: Life | None = None
        self.window_index = 0
        self._doubtful: Life | None = None
        self._doubtful_at_s = 0.0
        self._charged = 0

    def failed(self, error: InferenceError, now_s: float) -> None:
        """An attempt ended with an error; ``now_s`` is on the monotonic clock."""
        if isinstance(error, EndpointUnavailableError) and error.attempts == 0:
            self.unsent += 1
            return
        self.attempts += 1
        if not self.may_be_death(error):
            return
        if self._doubtful is not self.life:
            self._doubtful, self._charged = self.life, 0
        self._doubtful_at_s = now_s
        self._charged += 1

    def may_be_death(self, error: InferenceError) -> bool:
        """Whether a dying server fails requests like this: the connection breaks, or a 5xx comes just before."""
        if self.lane is None or not self.lane.is_owned:
            return False
        return isinstance(error, EndpointUnavailableError) or (error.status or 0) >= 500

    def settle(self) -> bool:
        """Whether the failure was a server death after all; if so it is counted as one, and its attempts are given back."""
        life = self._doubtful
        if life is None or life.ended_at_s is None or life.ended_at_s - self._doubtful_at_s > _DYING_S:
            return False
        if life.completed_at_s - self._doubtful_at_s > _LIVED_ON_S:
            return False  # it went on answering after it had failed this request, and died of something else
        self.deaths += 1
        self.attempts -= self._charged
        self._doubtful = None
        return True
