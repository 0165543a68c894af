"""When failed documents end the job. Pure.

Receives: outcomes, in the order in which documents end.        Hands on: FailureBudgetError when the budget is exceeded.
Invariant: documents that failed in an earlier attempt of the same job count towards the number and the share, not towards the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_provider_rollout.engine.config import FailureBudget
from airflow_provider_rollout.engine.exceptions import FailureBudgetError
from airflow_provider_rollout.engine.result import Outcome

__all__ = ["FailureKeeper"]

_SHARE_FROM = 100  # a share of fewer documents says nothing
_TOP_CAUSES = 5
_EXAMPLE_CHARS = 200


class FailureKeeper:
    """Failures so far, measured against the budget."""

    def __init__(self, budget: FailureBudget) -> None:
        self._budget = budget
        self.ended = 0
        self.failed = 0
        self.in_a_row = 0
        self.causes: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def resume(self, *, ended: int, failed: int, causes: dict[str, int]) -> None:
        """Count what earlier attempts have finished."""
        self.ended += ended
        self.failed += failed
        self.causes.update(causes)

    def add(self, outcome: Outcome, failures: Sequence[tuple[str, str]], *, key: str) -> None:
        """Count one ended document.

        Args:
            outcome: how it ended.
            failures: cause and message of each failed rollout.
            key: the document's.

        Raises:
            FailureBudgetError: too many have failed; the message holds the most frequent causes, each with an example.
        """
        self.ended += 1
        for cause, message in failures:
            self.causes[cause] += 1
            self._examples.setdefault(cause, f"document {key}: {message[:_EXAMPLE_CHARS]}")
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
        causes = (
            f"{cause}: {count}" + (f" (as {self._examples[cause]})" if cause in self._examples else "")
            for cause, count in self.top_causes().items()
        )
        raise FailureBudgetError(f"the failure budget is exceeded: {what}; most frequent causes: {', '.join(causes)}")
