"""The driver's state between two steps: what a checkpoint holds beside the model. JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from longboat_crds.reasons import Reason
from longboat_runtime.driver.eventlog import LogPosition
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The last held-out evaluation; `score` is None if nothing could be graded."""

    step: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Taken right after a commit, before anything else happens.

    `identity` is that of the job that began (it goes into seeds), `source` the prompt source's state, `lengths` what is
    known of response lengths, `log` the position behind the commit.
    """

    identity: str
    ledger: Mapping[str, Any]
    source: Mapping[str, Any]
    lengths: Mapping[str, Any]
    log: LogPosition

    @property
    def step(self) -> int:
        return int(self.ledger["step"])

    def to_state(self, evaluated: Evaluated | None, calibrations: Mapping[str, float]) -> dict[str, Any]:
        """As it stands in a manifest. The evaluation comes after the commit, and is not repeated once it is saved.

        `calibrations` are those of the fleet: a later one judges its engines by them.
        """
        later = {"evaluated": asdict(evaluated) if evaluated else None, "calibrations": dict(calibrations)}
        return {**asdict(self), **later}


def take(
    identity: str, ledger: Ledger, source: Mapping[str, Any], lengths: LengthHistory, log: LogPosition
) -> Boundary:
    """The boundary at this moment."""
    return Boundary(identity, to_snapshot(ledger), dict(source), lengths.to_snapshot(), log)


def calibrations(state: Mapping[str, Any]) -> dict[str, float]:
    """Those in the state of a manifest; none if it was made before they were kept."""
    return {str(key): float(value) for key, value in state.get("calibrations", {}).items()}


def read(state: Mapping[str, Any], group_size: int) -> tuple[Boundary, Ledger, LengthHistory, Evaluated | None]:
    """Inverse of `to_state`. Raises SpecProblem if the checkpoint was made with another group size or cannot be read."""
    try:
        ledger = from_snapshot(state["ledger"])
        lengths = LengthHistory.from_snapshot(state["lengths"])
        position = LogPosition(**state["log"])
        boundary = Boundary(state["identity"], state["ledger"], state["source"], state["lengths"], position)
        evaluated = Evaluated(**state["evaluated"]) if state["evaluated"] else None
    except (KeyError, TypeError, ValueError) as error:
        message = f"The checkpoint's state can't be read ({error!r}): it was made by another version of Longboat."
        raise SpecProblem(Reason.CHECKPOINT_MISMATCH, "spec.checkpoint", message) from error
    if ledger.group_size != group_size:
        message = f"The checkpoint was made with groupSize {ledger.group_size}, not {group_size}. Set it back, or start a new job."
        raise SpecProblem(Reason.CHECKPOINT_MISMATCH, "spec.algorithm.groupSize", message)
    return boundary, ledger, lengths, evaluated
