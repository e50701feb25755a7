"""Decides how often a sample is graded again, and when that is given up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from longboat_graders.messages import FunctionOutcome, OutcomeKind

# A function that fails on a sample is run in this many attempts that lose no graders, each on another worker if there is one.
GRADE_ATTEMPTS = 2
# A sample is given up once its graders have been lost this often while they graded it, or this often in all, waiting included.
MOST_LOST_WHILE_GRADED, MOST_LOST = 3, 10


@dataclass(slots=True)
class Attempts:
    """Counts the attempts at one sample. A loss of graders (mostly out of memory) costs none: another sample may be the cause.

    What was being graded when they went is graded `alone` from then on. So the next time they go for it, it is the cause itself, and
    no other sample is lost with it.
    """

    failed: int = 0
    lost: int = 0
    lost_while_graded: int = 0

    @property
    def alone(self) -> bool:
        """Whether no other sample may be graded by the same graders at the same time."""
        return self.lost_while_graded > 0

    @property
    def may_retry(self) -> bool:
        """Whether it may be graded (again)."""
        return (
            self.failed < GRADE_ATTEMPTS and self.lost < MOST_LOST and self.lost_while_graded < MOST_LOST_WHILE_GRADED
        )

    def count(self, outcomes: Mapping[str, FunctionOutcome]) -> bool:
        """Takes note of an attempt's outcomes, by name of the function; False if it was none, since the graders were lost."""
        lost = [outcome for outcome in outcomes.values() if outcome.kind is OutcomeKind.LOST]
        self.lost += bool(lost)
        self.lost_while_graded += any(outcome.begun for outcome in lost)
        self.failed += not lost
        return not lost

    def final(self, outcomes: Mapping[str, FunctionOutcome]) -> dict[str, FunctionOutcome]:
        """Returns the outcomes with which the sample is left: those that are still LOST become grader errors."""
        message = f"its graders were lost {self.lost} times, {self.lost_while_graded} of them while they graded it (out of memory, mostly)"
        return {
            name: replace(outcome, kind=OutcomeKind.GRADER_ERROR, message=f"{message}: {outcome.message}")
            if outcome.kind is OutcomeKind.LOST
            else outcome
            for name, outcome in outcomes.items()
        }


def settled(outcomes: Mapping[str, FunctionOutcome]) -> set[str]:
    """Returns the names of the functions that needn't be run again."""
    again = (OutcomeKind.GRADER_ERROR, OutcomeKind.LOST)
    return {name for name, outcome in outcomes.items() if outcome.kind not in again}
