"""A round of which nothing is scored ends the job, unless groups were scored in an earlier round."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from longboat_crds.problems import SpecProblem
from longboat_runtime.driver.grading import Grading
from longboat_runtime.rounds import events
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import GroupRecord, RoundRecord, SampleRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import GradeKind, PromptId
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import part
from tests.support.log import logged

CARRIED = PromptId(0, 3)


@pytest.mark.parametrize("carried", [False, True])
def test_a_round_without_a_score_fails_unless_a_carried_group_has_one(tmp_path: Path, carried: bool) -> None:
    grading = part(Site(tmp_path, make_spec()).driver(), Grading)
    ledger = Ledger(1, 5)
    ledger.rounds[2] = round_ = RoundRecord(2, RoundKind.SHORT, version=1)
    round_.grades = Counter({GradeKind.NOT_APPLICABLE: 1})
    if carried:
        ledger.groups[CARRIED] = group = GroupRecord(CARRIED, 0, 2, [SampleRecord(0)])
        group.counted.append(0)
        round_.kept[CARRIED] = None
    grading._view = View(ledger)
    started = logged(events.StepStarted(2, 2))
    if carried:
        grading.on(started, None)
    else:
        with pytest.raises(SpecProblem, match="No sample of the round could be graded"):
            grading.on(started, None)
