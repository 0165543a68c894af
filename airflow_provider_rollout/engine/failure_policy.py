"""When failed documents end the job. Pure.

Receives: outcomes, in the order in which documents end.        Hands on: FailureBudgetError when the budget is exceeded.
Invariant: documents that failed in an earlier attempt of the same job count towards the number and the share, not towards the row.
"""

from __future__ import annotations

from collections import Counter

from airflow_provider_rollout.engine.config import FailureBudget
from airflow_provider_rollout.engine.exceptions import FailureBudgetError
from airflow_provider_rollout.engine.result import Outcome

__all__ = ["FailureKeeper"]

_SHARE_FROM = 100  # a share of fewer documents says nothing
_TOP_CAUSES = 5


class FailureKeeper:
    """Failures so far, measured against the budget."""

    def __init__(self, budget: FailureBudget) -> None:
        self._budget = budget
        self.ended = 0
        self.failed = 0
        self.in_a_row = 0
        self.causes: Counter[str] = Counter()

    def resume(self, *, ended: int, failed: int, causes: dict[str, int]) -> None:
        """Count what earlier attempts have finished."""
        self.ended += ended
        self.failed += failed
        self.causes.update(causes)

    def add(self, outcome: Outcome, causes: list[str]) -> None:
        """Count one ended document.

        Raises:
            FailureBudgetError: too many have failed; the message holds the most frequent causes.
        """
        self.ended += 1
        self.causes.update(causes)
        if outcome != "failed":
            self.in_a_row = 0
            return
        self.failed += 1
        self.in_a_row += 1
        budget = self._budget
        if budget.max_consecutive_failures is not None and self.in_a_row >= budget.max_consecutive_failures:
            self._give_up(
                f"{self.in_a_row} documents failed in a row (max_consecutive_failures={budget.max_consecutive_failures})"
            )
        if budget.max_failed is not None and self.failed > budget.max_failed:
            self._give_up(f"{self.failed} documents failed (max_failed={budget.max_failed})")
        if self.ended >= _SHARE_FROM:
            self.check_share()

    def check_share(self) -> None:
        """Measure the share of failed documents; also at the end of the input.

        Raises:
            FailureBudgetError: it is over the budget.
        """
        share = self._budget.max_failed_share
        if share is not None and self.ended and self.failed / self.ended > share:
            self._give_up(f"{self.failed} of {self.ended} documents failed (max_failed_share={share})")

    def top_causes(self) -> dict[str, int]:
        """The most frequent causes with their counts."""
        return dict(self.causes.most_common(_TOP_CAUSES))

    def _give_up(self, what: str) -> None:
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.top_causes().items())
        raise FailureBudgetError(
            f"the failure budget is exceeded: {what}; most frequent causes: {causes}; the dead letters name each document"
        )
