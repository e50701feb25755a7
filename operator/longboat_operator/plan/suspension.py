"""Suspend and resume. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto

from longboat_crds.base import Role
from longboat_crds.status import TrainingState
from longboat_operator.plan.losses import loss_of
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView


class Suspension(Enum):
    """Says how far a job is suspended: whether it should have pods."""

    NONE = auto()
    """It isn't: it should have pods."""
    SUSPENDING = auto()
    """It should not, but its driver may still save a checkpoint."""
    RELEASING = auto()
    """Its pods are being deleted."""
    SUSPENDED = auto()
    """It has none."""


def suspension_of(view: JobView, now: datetime) -> Suspension:
    """Returns where the job stands between running and suspended.

    Rules:
    * asked to suspend, the driver (which sees spec.suspend itself) has `checkpoint.graceSeconds` from `suspendTime` to
      save a checkpoint and report Suspended; then, or if there is no driver that could, the pods are deleted;
    * if the request is withdrawn before that, the pods stay, and a driver that hasn't seen the request continues; after that
      the suspension is carried through, and the job resumes with new pods;
    * a driver that has seen the request stops even if it is withdrawn: once it reports Suspended, the suspension is carried
      through as well.
    """
    if view.suspended:
        if not view.spec.suspend:
            return Suspension.NONE
        return Suspension.RELEASING if view.all_pods else Suspension.SUSPENDED
    if view.status.suspend_time is None:
        if not view.spec.suspend and not has_stopped(view):
            return Suspension.NONE
        return Suspension.SUSPENDING if view.all_pods else Suspension.SUSPENDED
    if has_stopped(view) or not may_checkpoint(view) or grace_left(view, now) <= 0:
        return Suspension.RELEASING if view.all_pods else Suspension.SUSPENDED
    return Suspension.SUSPENDING if view.spec.suspend else Suspension.NONE


def has_stopped(view: JobView) -> bool:
    """Whether the current driver reported Suspended."""
    return view.training is not None and view.training.state is TrainingState.SUSPENDED


def may_checkpoint(view: JobView) -> bool:
    """Whether there is a driver at work that could save a checkpoint."""
    at_work = view.training is not None and view.training.state in {TrainingState.STARTING, TrainingState.RUNNING}
    return at_work and any(loss_of(pod) is None for pod in view.pods[Role.DRIVER])


def grace_left(view: JobView, now: datetime) -> float:
    """Returns the seconds that the driver still has, 0 or less once they are over; all of them if no suspension is published yet."""
    grace = float(view.spec.checkpoint.grace_seconds)
    since = view.status.suspend_time
    return grace if since is None else seconds_until(since, grace, now)
