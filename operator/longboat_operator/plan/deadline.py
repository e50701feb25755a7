"""Limits how long a job may take to get ready. Pure."""

from __future__ import annotations

from datetime import datetime

from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.times import moment, seconds_until, stamp
from longboat_operator.reading.view import JobView

# Reasons of the condition Running that a job has only if it has trained since it was started or resumed.
TRAINED = frozenset({str(Reason.TRAINING), str(Reason.RESTARTING), str(Reason.HEAD_LOST)})


def has_trained(view: JobView) -> bool:
    """Whether rounds ran since the job was started or resumed."""
    running = find(view.status.conditions, ConditionType.RUNNING)
    return running is not None and running.reason in TRAINED


def waits_for_acceptance(view: JobView) -> bool:
    """Whether the driver waits until somebody accepts that its inputs aren't those of its checkpoint."""
    return view.problem is not None and view.problem.reason == Reason.CHECKPOINT_MISMATCH and not view.problem.fatal


def seconds_left(view: JobView, now: datetime) -> float | None:
    """Returns the seconds until roles that are not ready fail the job, 0 or less once they do; None when there is no deadline.

    Rule: `startDeadlineSeconds` run while the job has not trained since its start or resume, from that time, or from
    when roles that were ready ceased to be so, which is now if the status still says they are. Later it may wait for nodes
    as long as it takes: it has something to lose. So has one that waits for somebody, who may take as long.
    """
    if view.status.start_time is None or view.suspended or has_trained(view) or waits_for_acceptance(view):
        return None
    conditions = view.status.conditions
    since = [view.status.start_time]
    for kind in (ConditionType.SUSPENDED, ConditionType.ROLES_READY):
        condition = find(conditions, kind)
        if condition and condition.status == "False":
            since.append(condition.last_transition_time)
        elif condition and kind is ConditionType.ROLES_READY:
            since.append(stamp(now))
    return seconds_until(max(since, key=moment), view.spec.failure_policy.start_deadline_seconds, now)


def missed(view: JobView, now: datetime, missing: str) -> Finding | None:
    """Returns the end of a job whose roles were not ready in time; None before a deadline or without one. `missing` is what isn't ready."""
    remaining = seconds_left(view, now)
    if remaining is None or remaining > 0:
        return None
    limit = view.spec.failure_policy.start_deadline_seconds
    message = f"not ready within {limit} s (failurePolicy.startDeadlineSeconds): {missing}"
    return Finding(ConditionType.FAILED, True, Reason.START_DEADLINE_EXCEEDED, message)
