"""What a sample is graded again for, and how often."""

import pytest

from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.reward.attempts import GRADE_ATTEMPTS, MOST_LOST, MOST_LOST_WHILE_GRADED, Attempts, settled

RIGHT = FunctionOutcome(OutcomeKind.SCORED, 1.0)
FAILED = FunctionOutcome(OutcomeKind.GRADER_ERROR, message="it raised")
WAITED = FunctionOutcome(OutcomeKind.LOST, message="gone")
GRADED = FunctionOutcome(OutcomeKind.LOST, message="gone", begun=True)


def attempts_with(outcome: FunctionOutcome) -> tuple[int, Attempts]:
    attempts, count = Attempts(), 0
    while attempts.may_retry:
        attempts.count({"a": outcome})
        count += 1
    return count, attempts


@pytest.mark.parametrize(
    ("outcome", "count"), [(FAILED, GRADE_ATTEMPTS), (WAITED, MOST_LOST), (GRADED, MOST_LOST_WHILE_GRADED)]
)
def test_nothing_is_tried_for_ever(outcome: FunctionOutcome, count: int) -> None:
    assert attempts_with(outcome)[0] == count


def test_lost_graders_cost_no_attempt() -> None:
    attempts = Attempts()
    for _ in range(2):
        assert not attempts.count({"a": RIGHT, "b": WAITED})
    assert not attempts.alone
    attempts.count({"b": GRADED})
    assert attempts.alone
    for _ in range(GRADE_ATTEMPTS):
        assert attempts.may_retry
        assert attempts.count({"b": FAILED})
    assert not attempts.may_retry


def test_what_is_lost_again_and_again_is_a_grader_error_that_says_so() -> None:
    _, attempts = attempts_with(GRADED)
    final = attempts.final({"a": RIGHT, "b": GRADED})
    assert final["a"] == RIGHT
    assert final["b"].kind is OutcomeKind.GRADER_ERROR
    assert "lost 3 times" in final["b"].message
    assert settled({"a": RIGHT, "b": GRADED, "c": FAILED}) == {"a"}
