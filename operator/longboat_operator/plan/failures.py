"""Decides when a job has failed or succeeded. Pure."""

from __future__ import annotations

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import RestartRecord, TrainingState
from longboat_operator.plan.records import Memories
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import Finding
from longboat_operator.reading.view import JobView


def said_by_driver(view: JobView) -> Finding | None:
    """Returns the end that the driver reports; None if it reports none that counts.

    Rule: only the current driver ends its job. One that was superseded, on a lost node for example, may have met a
    problem that its successor doesn't see; a problem of the job itself the successor will meet too.
    """
    problem = view.problem
    state = view.training.state if view.training else None
    if problem and (problem.fatal or state is TrainingState.FAILED):
        place = f"{problem.field}: " if problem.field else ""
        return Finding(ConditionType.FAILED, True, problem.reason, place + problem.message)
    if state is TrainingState.FAILED:
        return Finding(ConditionType.FAILED, True, Reason.DRIVER_FAILED, "the driver gave up without naming a cause")
    if state is TrainingState.SUCCEEDED and not ended_before_last_step(view):
        checkpoint = view.status.checkpoint
        export = f"; the model is in {checkpoint.export}" if checkpoint and checkpoint.export else ""
        return Finding(ConditionType.SUCCEEDED, True, Reason.JOB_SUCCEEDED, f"{view.step} steps are trained{export}")
    return None


def ended_before_last_step(view: JobView) -> bool:
    """Whether the current driver has ended its job and there are steps left to train.

    Rule: `rounds.steps` may be raised until the job has succeeded, even after its last step, when the driver no longer
    looks. Another driver then continues.
    """
    ended = view.training is not None and view.training.state is TrainingState.SUCCEEDED
    return ended and view.step < view.spec.rounds.steps


def over_the_limit(view: JobView, counts: Memories) -> Finding | None:
    """Returns the end of a job in which a role failed too often without progress; None if none did.

    Rule: the role's incidents since the last new step, whatever failed in them, are more than its limit (spec.failurePolicy).
    """
    for role, traits in ROLES.items():
        limit = traits.limit(view.spec.failure_policy)
        number = counts[role].since(view.step)
        if number > limit:
            step = max(view.step, counts[role].restart_step or 0)
            since = f"since step {step} was committed" if step else "before the first step was committed"
            return Finding(
                ConditionType.FAILED,
                True,
                Reason.RESTART_LIMIT_EXCEEDED,
                f"role {role} failed {number} times {since} (failurePolicy.{traits.limit_field}: {limit}); "
                + _last_cause(role, counts[role].news or tuple(view.status.restart_history or ())),
            )
    return None


def _last_cause(role: Role, records: tuple[RestartRecord, ...]) -> str:
    last = next((r for r in reversed(records) if r.role == role and r.counted), None)
    return f"last: pod {last.pod}: {last.message}" if last else "the last cause is not known"
