"""What a grade's process answers is read with suspicion: graded code may have written it."""

from typing import Any

import pytest

from longboat_graders.messages import MESSAGE_CHARACTERS, FunctionOutcome, OutcomeKind

SCORED = {"kind": "scored", "score": 1.0, "message": ""}


@pytest.mark.parametrize("kind", [OutcomeKind.LOST, OutcomeKind.TIMEOUT, OutcomeKind.GRADER_ERROR])
def test_a_response_of_a_group_has_no_outcome_that_only_a_call_can_have(kind: OutcomeKind) -> None:
    with pytest.raises(ValueError, match="a response of a group has the outcome"):
        FunctionOutcome.from_json({**SCORED, "each": [SCORED, {**SCORED, "kind": kind.value}]})


def test_groups_of_groups_are_not_read() -> None:
    nested: dict[str, Any] = SCORED
    for _ in range(5000):
        nested = {**SCORED, "each": [nested]}
    (share,) = FunctionOutcome.from_json(nested).each
    assert share == FunctionOutcome(OutcomeKind.SCORED, 1.0)


def test_messages_and_metrics_are_bounded() -> None:
    metrics = {f"n{i}": 1.0 for i in range(1000)} | {"list": [1], "text": "1", "huge": 10**400}
    outcome = FunctionOutcome.from_json({**SCORED, "message": "x" * 10**6, "metrics": metrics})
    assert len(outcome.message) == MESSAGE_CHARACTERS
    assert len(outcome.metrics) == 33


def test_an_outcome_of_a_group_comes_through_json() -> None:
    each = (FunctionOutcome(OutcomeKind.SCORED, 0.5, message="a"), FunctionOutcome(OutcomeKind.NOT_APPLICABLE))
    outcome = FunctionOutcome(OutcomeKind.SCORED, seconds=4.0, cpu_seconds=2.0, metrics={"m": 1.0}, each=each)
    assert FunctionOutcome.from_json(outcome.to_json()) == outcome
    first, second = outcome.by_sample(2)
    assert (first.score, first.seconds, first.cpu_seconds, first.metrics) == (0.5, 2.0, 1.0, {"m": 1.0})
    assert second.kind is OutcomeKind.NOT_APPLICABLE
