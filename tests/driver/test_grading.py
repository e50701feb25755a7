"""A round of which nothing is scored ends the job, unless groups were scored in an earlier round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from longboat_crds.problems import SpecProblem
from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.grading import Grading
from longboat_runtime.rounds import events
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import GroupRecord, RoundRecord, SampleRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import GradeKind, PromptId, SampleId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import part
from tests.support.log import logged

CARRIED = PromptId(0, 3)


@pytest.mark.parametrize("carried", [False, True])
async def test_a_round_without_a_score_fails_unless_a_carried_group_has_one(tmp_path: Path, carried: bool) -> None:
    grading = part(Site(tmp_path, make_spec()).driver(), Grading)
    ledger = Ledger(1, 5)
    ledger.rounds[2] = round_ = RoundRecord(2, RoundKind.SHORT, version=1)
    round_.grades = Counter({GradeKind.NOT_APPLICABLE: 1})
    grading._view = View(ledger)
    if carried:
        await grading.before_commit(2, Batch({SampleId(*CARRIED, 0, 0): SampleRecord(0)}, [1.0], [0.0]))
    else:
        with pytest.raises(SpecProblem, match="No sample of the round could be graded"):
            await grading.before_commit(2, Batch({}, [], []))


def test_an_error_of_a_carried_group_whose_round_is_over_is_cleared(tmp_path: Path) -> None:
    grading = part(Site(tmp_path, make_spec()).driver(), Grading)
    ledger = Ledger(1, 5)
    ledger.groups[CARRIED] = GroupRecord(CARRIED, 0, 1, [SampleRecord(0)])
    grading._view = View(ledger)
    sample = SampleId(*CARRIED, 0, 0)
    grading.on(logged(events.Graded(sample, GradeKind.GRADER_ERROR, 0.0, 0.1, "it crashed")), None)
    grading.on(logged(events.StepCommitted(2, 2, 2, ())), None)
    assert grading.status().problems, "the record of the step that follows has the error"
    grading.on(logged(events.StepCommitted(3, 3, 3, ())), None)
    assert not grading.status().problems
