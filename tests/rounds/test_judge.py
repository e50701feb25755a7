"""What becomes of a group once all its grades are there."""

import pytest

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import GroupRecord, SampleRecord, SampleState
from longboat_runtime.rounds.rules import judge
from longboat_runtime.samples import GradeKind, PromptId

SCORED, NOTHING, ERROR = GradeKind.SCORED, GradeKind.NOT_APPLICABLE, GradeKind.GRADER_ERROR


def group(*grades: tuple[GradeKind, float]) -> GroupRecord:
    samples = [
        SampleRecord(index, SampleState.REWARDED, index, counts=True, kind=kind, score=score)
        for index, (kind, score) in enumerate(grades)
    ]
    count, errors = len(samples), sum(kind is ERROR for kind, _ in grades)
    return GroupRecord(PromptId(0, 0), 0, 1, samples, counted=[*range(count)], completed=9, graded=count, errors=errors)


@pytest.mark.parametrize(
    ("grades", "flat_dropped", "reason"),
    [
        ([(SCORED, 1.0), (SCORED, 0.0)], True, None),
        ([(SCORED, 1.0), (SCORED, 0.0), (NOTHING, 0.0)], True, None),
        ([(SCORED, 1.0), (SCORED, 1.0), (NOTHING, 0.0)], False, None),
        ([(SCORED, 1.0), (SCORED, 1.0), (NOTHING, 0.0)], True, DropReason.ZERO_VARIANCE),
        ([(SCORED, 1.0), (NOTHING, 0.0), (NOTHING, 0.0)], False, DropReason.NOT_APPLICABLE),
        ([(NOTHING, 0.0)] * 4, False, DropReason.NOT_APPLICABLE),
        ([(SCORED, 1.0), (NOTHING, 0.0), (ERROR, 0.0)], False, DropReason.GRADER_ERROR),
        ([(SCORED, 1.0)], False, None),
        ([(NOTHING, 0.0)], False, DropReason.NOT_APPLICABLE),
    ],
)
def test_a_group_is_kept_if_two_samples_can_be_compared(
    grades: list[tuple[GradeKind, float]], flat_dropped: bool, reason: DropReason | None
) -> None:
    decision = judge(group(*grades), drop_zero_variance=flat_dropped)
    kept = events.GroupKept(PromptId(0, 0), 0)
    assert decision == (kept if reason is None else events.GroupDropped(PromptId(0, 0), 0, reason))
