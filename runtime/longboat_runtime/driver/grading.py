"""How responses are graded: the errors of graders, how grades are kept apart, and the limits learned for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.status import LINE_LENGTH, RewardGrading
from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.metrics.timeouts import learned_limits, timeout_metrics
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.samples import UNSCORED, GradeKind, SampleId
from longboat_runtime.status_fragment import Problems, StatusFragment


class Grading(Observer):
    """Reports errors of graders until a round without one is trained and no open round has any.

    Ends the job if no sample of a round could be graded.
    """

    watches = (events.Graded, events.StepCommitted)

    def __init__(self, context: Context) -> None:
        self._rewards = context.components.rewards
        self._problems = Problems(context.news)
        self._errors: Counter[int] = Counter()
        self._status: list[RewardGrading] | None = None

    def resume(self, restored: Restored) -> None:
        self._view, self._timeouts = restored.run_state.view, restored.run_state.timeouts

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        """Notes an error, or that the errors of a round have been trained."""
        match entry.body:
            case events.Graded(sample=sample, kind=GradeKind.GRADER_ERROR, message=message):
                group = self._view.groups.get(sample.prompt)
                self._errors[group.round if group else self._view.last_round] += 1
                self._problems.put(Reason.GRADER_ERRORS, "spec.rewards", _error(sample, message))
            case events.StepCommitted(round=number):
                trained = [round_ for round_ in self._errors if round_ <= number]
                for round_ in trained:
                    del self._errors[round_]
                if not trained and not self._errors:
                    self._problems.clear(Reason.GRADER_ERRORS)

    async def before_commit(self, round_: int, batch: Batch) -> None:
        """Raises SpecProblem if no sample of the round could be graded."""
        grades = self._view.rounds[round_].grades
        if not batch.records and grades and grades.keys() <= {*UNSCORED}:
            last = self._problems.get(Reason.GRADER_ERRORS)
            why = f"its last error: {last.message}" if last else "every function returned None for every sample."
            text = f"No sample of the round could be graded. Fix the reward function; {why}"
            raise SpecProblem(Reason.GRADER_ERRORS, "spec.rewards", text)

    async def metrics(self, step: int) -> Mapping[str, float]:
        """Returns the limits that are learned, and puts them into the status."""
        learned = learned_limits(self._timeouts)
        self._status = [
            RewardGrading(
                name=name,
                isolation=grading.isolation.value,
                reason=grading.reason[:LINE_LENGTH] or None,
                learned_limits=list(learned.get(name, ())) or None,
            )
            for name, grading in self._rewards.isolation.items()
        ] or None
        return timeout_metrics(self._timeouts)

    def status(self) -> StatusFragment:
        return StatusFragment({"rewards": self._status}, problems=self._problems.present)


def _error(sample: SampleId, message: str) -> str:
    """Returns what people are told of a grader's error: on which row, and what to do."""
    return (
        f"A response to row {sample.row} of the dataset (from 0 on, through all its files) can't be graded, so its group is dropped: "
        f"{message or 'a grader failed'}. Correct the reward function or the row and resume the job, or start one without this row."
    )
