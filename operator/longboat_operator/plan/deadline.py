"""Limits how long a job that has its pods may take until rounds run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Placement
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.times import moment, stamp
from longboat_operator.reading.view import JobView

# Reasons of the condition Running that a job has only if it has trained since it was started, resumed, or released for want of room.
TRAINED = frozenset({str(Reason.TRAINING), str(Reason.RESTARTING), str(Reason.HEAD_LOST)})


def has_trained(view: JobView) -> bool:
    """Whether rounds ran since the job was started or resumed, or its pods were released for want of room."""
    running = find(view.status.conditions, ConditionType.RUNNING)
    return running is not None and running.reason in TRAINED


def has_committed(view: JobView) -> bool:
    """Whether the job has a committed step to lose, in memory or in a checkpoint."""
    return view.step > 0 or (view.status.checkpoint is not None and view.status.checkpoint.step > 0)


def waits_for_acceptance(view: JobView) -> bool:
    """Whether the driver waits until somebody accepts that its inputs aren't those of its checkpoint."""
    return view.problem is not None and view.problem.reason == Reason.CHECKPOINT_MISMATCH and not view.problem.fatal


# An operator looks at a job within seconds of its deadline; a new leader takes a little longer.
LATE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StartClock:
    """Counts the seconds of `startDeadlineSeconds`: `seconds` so far and, if it runs, those since `since`."""

    seconds: int = 0
    since: str | None = None

    def read(self, now: datetime) -> int:
        """Returns the whole seconds counted so far."""
        running = (now - moment(self.since)).total_seconds() if self.since else 0.0
        return self.seconds + max(0, int(running))


def start_clock(view: JobView, placed: bool, ready: bool, now: datetime) -> StartClock:
    """Returns the start clock after this look. `placed` and `ready` say whether the job's whole minimum of pods has nodes and is ready.

    Rules:
    * it runs while the whole minimum has nodes and isn't ready, or the current driver reports nothing;
    * it doesn't once rounds have run or a step is committed, since such a job has something to lose. Nor does it while the driver waits for
      a person, who may take as long;
    * it is stopped, never set back: what it has counted stays in the status until rounds run or the job is suspended;
    * time in which no operator looked isn't counted, as far as that is known: one would have ended the job. Pods may have been lost
      meanwhile, and a driver gets no number without an operator.
    """
    old = view.status.placement
    clock = StartClock(old.start_seconds or 0, old.start_since) if old else StartClock()
    if clock.read(now) > view.spec.failure_policy.start_deadline_seconds + LATE_SECONDS:
        clock = StartClock(clock.seconds)
    starts = placed and not (ready and view.training)
    if starts and not (has_trained(view) or has_committed(view) or waits_for_acceptance(view)):
        return clock if clock.since else StartClock(clock.seconds, stamp(now))
    return StartClock(clock.read(now))


def seconds_left(view: JobView, placement: Placement | None, now: datetime) -> float | None:
    """Returns the seconds until the start deadline, 0 or less once it has passed; None while the clock is stopped."""
    if placement is None or placement.start_since is None:
        return None
    clock = StartClock(placement.start_seconds or 0, placement.start_since)
    return view.spec.failure_policy.start_deadline_seconds - clock.read(now)


def missed(view: JobView, placement: Placement | None, now: datetime, missing: str) -> Finding | None:
    """Returns the end of a job that was not ready in time; None before a deadline or without one. `missing` is what isn't ready."""
    remaining = seconds_left(view, placement, now)
    if remaining is None or remaining > 0:
        return None
    limit = view.spec.failure_policy.start_deadline_seconds
    message = f"not ready within {limit} s of having nodes for its minimum of pods (failurePolicy.startDeadlineSeconds): {missing}"
    return Finding(ConditionType.FAILED, True, Reason.START_DEADLINE_EXCEEDED, message)
