"""The state of a running driver, and the part of it that a checkpoint holds in addition to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver.shape_plan import ShapePlan
from longboat_runtime.eventlog import EventLog, LogPosition
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.view import View
from longboat_runtime.rounds.work import RoundWorks


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The last held-out evaluation; `score` is its mean score, None if nothing could be graded."""

    step: int
    score: float | None


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """The state between two steps, as JSON values: taken right after a commit, before anything else happens, or as a driver starts.

    `identity` belongs to the job that the training started as (it goes into seeds). `source` is the prompt source's state, `lengths` the
    history of response lengths, and `log` the position then. `timeouts` is what is known of grading times, and `parallelism` the plan of
    engines' shapes. A later fleet judges its engines by `calibrations`. `unclear` are those task rewards whose scores don't tell whether a
    row is solved.
    """

    identity: str
    ledger: Mapping[str, Any]
    source: Mapping[str, Any]
    lengths: Mapping[str, Any]
    log: LogPosition
    timeouts: Mapping[str, Any]
    parallelism: Mapping[str, Any]
    calibrations: Mapping[str, float]
    unclear: Sequence[str] = ()

    @property
    def step(self) -> int:
        return int(self.ledger["step"])

    def to_state(self, evaluated: Evaluated | None) -> dict[str, Any]:
        """Returns the boundary as a manifest holds it.

        The evaluation comes after the commit, belongs to the same step, and is not repeated once it is saved.
        """
        return {**asdict(self), "evaluated": asdict(evaluated) if evaluated else None}


class Fold(Protocol):
    """A pure function of the log, which `RunState` feeds."""

    def fold(self, entry: Entry) -> None:
        """Folds an entry of the log. The ledger has folded it before, if it is an event."""


class RunState:
    """What is folded from the log, and the log.

    The ledger folds events first, and drops those that have no effect. Then come, in this order, the lengths of responses, what open rounds
    ask of engines (`works`, which ends with its driver), and learned timeouts, if any are. Measurements go to the plan of engines' `shapes`.
    None of these reads another.

    Lengths are folded only if rounds form periods (`audited`), since otherwise they would never be dropped.

    `evaluated` is the last evaluation, which follows the commit of its step. `late_events` counts reported events that had no effect;
    they get no number and aren't logged.
    """

    def __init__(
        self,
        ledger: Ledger,
        lengths: LengthHistory,
        timeouts: LearnedTimeouts,
        shapes: ShapePlan,
        task_rewards: TaskRewards,
        log: EventLog,
        *,
        audited: bool,
    ) -> None:
        self.ledger, self.view, self.lengths, self.log = ledger, View(ledger), lengths, log
        self.timeouts, self.shapes, self.task_rewards = timeouts, shapes, task_rewards
        self.works = RoundWorks()
        self.evaluated: Evaluated | None = None
        self.late_events = 0
        self._of_events: list[Fold] = [
            *([lengths] if audited else []),
            self.works,
            *([timeouts] if timeouts.rewards else []),
        ]
        self._of_measurements: list[Fold] = [shapes]

    def fold(self, entry: Entry) -> None:
        """Folds an entry that the ledger has folded if it is an event, and appends it to the log."""
        for fold in self._of_measurements if isinstance(entry.body, Measurement) else self._of_events:
            fold.fold(entry)
        self.log.append(entry)

    def boundary(self, identity: str, source: Mapping[str, Any], calibrations: Mapping[str, float]) -> StepBoundary:
        """Returns the current state, all of which is of the last entry of the log, as a boundary. To be called between two steps."""
        return StepBoundary(
            identity,
            to_snapshot(self.ledger),
            dict(source),
            self.lengths.to_snapshot(),
            self.log.position,
            self.timeouts.to_snapshot(),
            self.shapes.to_snapshot(),
            dict(calibrations),
            self.task_rewards.to_snapshot(),
        )


def read_boundary(
    state: Mapping[str, Any], group_size: int, timeouts: LearnedTimeouts
) -> tuple[StepBoundary, Ledger, LengthHistory, Evaluated | None]:
    """Reads the boundary, ledger, history and last evaluation from what `to_state` returned; what was learned is restored into `timeouts`.

    Raises SpecProblem if the checkpoint was made with a different group size or can't be read.
    """
    try:
        ledger = from_snapshot(state["ledger"])
        lengths = LengthHistory.from_snapshot(state["lengths"])
        position = LogPosition(**state["log"])
        learned = state.get("timeouts", {})
        boundary = StepBoundary(
            state["identity"],
            state["ledger"],
            state["source"],
            state["lengths"],
            position,
            learned,
            state.get("parallelism", {}),
            {str(key): float(value) for key, value in state.get("calibrations", {}).items()},
            state.get("unclear", ()),
        )
        evaluated = Evaluated(**state["evaluated"]) if state["evaluated"] else None
        timeouts.restore(learned)
    except (KeyError, TypeError, ValueError) as error:
        message = f"The checkpoint's state can't be read ({error!r}): it was made by another version of Longboat."
        raise SpecProblem(Reason.CHECKPOINT_MISMATCH, "spec.checkpoint", message) from error
    if ledger.group_size != group_size:
        message = f"The checkpoint was made with groupSize {ledger.group_size}, not {group_size}. Set it back, or start a new job."
        raise SpecProblem(Reason.CHECKPOINT_MISMATCH, "spec.algorithm.groupSize", message)
    return boundary, ledger, lengths, evaluated
