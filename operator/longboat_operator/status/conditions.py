"""Conditions: what each says now, and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Condition, DrainStatus, RewardCpuStatus, TrainingState
from longboat_operator.plan.creation import Creation
from longboat_operator.plan.deadline import has_trained, waits_for_acceptance
from longboat_operator.plan.placement import Stage, Waiting
from longboat_operator.plan.pod_problems import PodProblem
from longboat_operator.plan.records import Memories
from longboat_operator.plan.suspension import Suspension, has_stopped
from longboat_operator.plan.templates import Template
from longboat_operator.pods.driver import RAY_HEAD
from longboat_operator.pods.pod import shared_users
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.terminations import terminations
from longboat_operator.reading.times import moment, stamp
from longboat_operator.reading.view import JobView
from longboat_operator.status.roles import Survey, blocked_by_finalizers, first_problem, first_unscheduled, summary

MESSAGE_LENGTH = 4096

_ORDER = {str(kind): position for position, kind in enumerate(ConditionType)}


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds what the plan has found about a job that is not finished."""

    suspension: Suspension
    roles: Survey
    counts: Memories
    creation: Creation
    held_up: PodProblem | None = None
    reward_cpu: RewardCpuStatus | None = None
    waiting: Waiting | None = None
    """How far the minimum of a job that is neither suspended nor finished has nodes."""
    foreign: PodProblem | None = None
    """A failing container that isn't ours."""
    refused: Finding | None = None
    """A request to delete or resize a pod that is refused or keeps failing."""
    drain: DrainStatus | None = None


def findings_of(view: JobView, facts: Facts) -> Iterator[Finding]:
    """Yields findings about a job that is not finished, in the order of their types; not every type has one."""
    if facts.suspension is Suspension.NONE:
        yield from _resolved(view, facts)
        yield _scheduled(view, facts)
        yield _roles_ready(view, facts)
        yield _running(view, facts)
        if not view.suspended:
            yield Finding(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED)
        elif view.all_pods:
            yield Finding(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED, "Resumed.")
    elif facts.suspension is Suspension.SUSPENDING:
        yield _running(view, facts)
        yield Finding(ConditionType.SUSPENDED, False, Reason.SUSPEND_REQUESTED, "Waiting for a final checkpoint.")
    else:
        yield from _without_pods(Reason.SUSPEND_REQUESTED)
        yield _suspended(view, facts)
    yield _degraded(view, facts)


def final_findings(end: Finding) -> Iterator[Finding]:
    """Yields findings about a job that has just ended; the last one is `end`, which says how."""
    yield from _without_pods(Reason.JOB_FINISHED)
    yield end


def deleted_findings(view: JobView, finalizers: Sequence[str], refused: Finding | None) -> Iterator[Finding]:
    """Yields findings about a deleted job whose removal these finalizers block."""
    details = [refused.message if refused else "", blocked_by_finalizers(view.ended_pods)]
    cause = f"the job was deleted, but finalizers block its removal: {', '.join(finalizers)}"
    message = "; ".join([cause, *filter(None, details)])
    yield Finding(ConditionType.SCHEDULED, False, Reason.JOB_DELETED)
    yield Finding(ConditionType.ROLES_READY, False, Reason.JOB_DELETED)
    yield Finding(ConditionType.RUNNING, False, Reason.JOB_DELETED, message)


def _without_pods(reason: Reason) -> Iterator[Finding]:
    for kind in (ConditionType.SCHEDULED, ConditionType.ROLES_READY, ConditionType.RUNNING):
        yield Finding(kind, False, reason)


def _resolved(view: JobView, facts: Facts) -> Iterator[Finding]:
    finding, template = facts.creation.finding, facts.creation.template
    if finding and finding.type is ConditionType.RUNTIME_RESOLVED:
        yield finding
    elif template and not template.is_new:
        reference = view.spec.runtime_ref
        message = f"{reference.kind} {reference.name}, kept in ControllerRevision {view.job.revision(template.number)}."
        if template.unread:
            message += f" It ignores what it can't read: {template.unread}."
        message += _warning_of_users(view, template)
        yield Finding(ConditionType.RUNTIME_RESOLVED, True, Reason.RUNTIME_RESOLVED, message)


def _released(facts: Facts) -> str | None:
    """Returns why the job's pods are or were released, and when it tries again; None if they aren't released."""
    if facts.waiting is None or facts.waiting.stage is Stage.NONE or facts.waiting.placement is None:
        return None
    placement = facts.waiting.placement
    retry = f"pods are created again at {placement.retry_time}" if placement.retry_time else "pods are being deleted"
    return f"{retry}: {placement.cause}"


def _warning_of_users(view: JobView, template: Template) -> str:
    """Returns a sentence, after a space, about containers of one pod that shouldn't share a user and do; empty if none do."""
    cases: list[tuple[Role, str | None]] = [(Role.DRIVER, None)]
    cases += [(role, pool.template) for role, traits in ROLES.items() for pool in traits.pool_specs(view.spec)]
    together = {
        f"{' and '.join(names)} of {role} pods"
        for role, named in cases
        if (names := shared_users(template.runtime, role, named))
    }
    if not together:
        return ""
    return (
        f" Containers {', '.join(sorted(together))} run as one user, which weakens the isolation of the driver and its token from code on "
        "Ray's head, and of the agents of reward and environment pods from the code beside them: give each a user of its own "
        "(securityContext.runAsUser) if the platform can."
    )


def _scheduled(view: JobView, facts: Facts) -> Finding:
    if message := _released(facts):
        return Finding(ConditionType.SCHEDULED, False, Reason.PODS_RELEASED, message)
    finding = facts.creation.finding
    if finding:
        return Finding(ConditionType.SCHEDULED, False, finding.reason, finding.message)
    if all(role.scheduled >= role.desired for role in facts.roles.values()):
        return Finding(ConditionType.SCHEDULED, True, Reason.PODS_SCHEDULED)
    if problem := first_unscheduled(facts.roles):
        return Finding(ConditionType.SCHEDULED, False, problem.reason, problem.message)
    return Finding(ConditionType.SCHEDULED, False, Reason.RESTARTING if has_trained(view) else Reason.PODS_STARTING)


def _roles_ready(view: JobView, facts: Facts) -> Finding:
    """Judges the condition RolesReady. Failing foreign containers, and pods that finalizers block, are mentioned but hold nothing up."""
    released, is_ready = _released(facts), all(role.all_ready for role in facts.roles.values())
    cause: Finding | PodProblem | None = facts.refused
    if released:
        is_ready, reason = False, Reason.PODS_RELEASED
    elif is_ready:
        cause, reason = facts.foreign, Reason.ALL_ROLES_READY
    else:
        cause = first_problem(facts.roles) or facts.held_up or facts.creation.finding or facts.refused or facts.foreign
        reason = Reason.RESTARTING if has_trained(view) else Reason.PODS_STARTING
    details = [released, cause.message if cause else "", blocked_by_finalizers(view.ended_pods)]
    text = "; ".join([summary(facts.roles), *filter(None, details)])
    return Finding(
        ConditionType.ROLES_READY,
        is_ready,
        cause.reason if cause and not released else reason,
        text if any(details) else f"{text}.",
    )


def _running(view: JobView, facts: Facts) -> Finding:
    """Judges the condition Running.

    Rule: rounds run when the current driver says so and every role has the pods that a round can't do without.
    """
    if _released(facts):
        return _queued(facts)
    serves = all(role.serves for role in facts.roles.values())
    if serves and view.training and view.training.state is TrainingState.RUNNING:
        return Finding(ConditionType.RUNNING, True, Reason.TRAINING)
    if waits_for_acceptance(view):
        message = f"{summary(facts.roles)}; the driver waits for checkpoint.acceptChanges, see condition Degraded."
        return Finding(ConditionType.RUNNING, False, Reason.CHECKPOINT_MISMATCH, message)
    if facts.waiting and facts.waiting.gives_up:
        return _queued(facts)
    if has_trained(view):
        if head := _head_lost(view):
            return Finding(ConditionType.RUNNING, False, Reason.HEAD_LOST, f"{summary(facts.roles)}; {head}")
        return Finding(ConditionType.RUNNING, False, Reason.RESTARTING, f"{summary(facts.roles)}.")
    if _waits_for_room(view, facts):
        return _queued(facts)
    reason = Reason.DRIVER_STARTING if serves else Reason.PODS_STARTING
    return Finding(ConditionType.RUNNING, False, reason, f"{summary(facts.roles)}.")


def _waits_for_room(view: JobView, facts: Facts) -> bool:
    """Whether a job that starts lacks nodes for its minimum: it has pods, had some before a release, or a quota refuses them."""
    if facts.waiting is None or facts.waiting.minimum.is_placed:
        return False
    finding, placement = facts.creation.finding, facts.waiting.placement
    refused = finding is not None and finding.reason == Reason.QUOTA_EXCEEDED
    return bool(view.all_pods) or refused or bool(placement and placement.releases)


def _queued(facts: Facts) -> Finding:
    assert facts.waiting is not None
    minimum = facts.waiting.minimum
    text = f"{minimum.placed} of {minimum.needed} pods of the minimum have nodes; {summary(facts.roles)}."
    return Finding(ConditionType.RUNNING, False, Reason.QUEUED, text)


def _head_lost(view: JobView) -> str | None:
    """Returns how the Ray head last ended, if that is why rounds don't run; else None.

    Rule: it is if the newest end that the driver's pods show is not before the last change of Running's status, or if Running already says
    so. All pods then wait for the head's successor, and the driver restarts.
    """
    running = find(view.status.conditions, ConditionType.RUNNING)
    ends = [
        (moment(ended.time), f"pod {pod.name}: {ended.text}")
        for pod in view.pods[Role.DRIVER]
        for ended in terminations(pod.own_statuses)
        if ended.container == RAY_HEAD and ended.time
    ]
    if running is None or not ends:
        return None
    when, how = max(ends)
    lasts = running.status == "False" and running.reason == Reason.HEAD_LOST
    return how if lasts or when >= moment(running.last_transition_time) else None


def _suspended(view: JobView, facts: Facts) -> Finding:
    if facts.suspension is Suspension.RELEASING:
        message = f"Pods are being deleted: {facts.refused.message}" if facts.refused else "Pods are being deleted."
        return Finding(ConditionType.SUSPENDED, view.suspended, Reason.SUSPEND_REQUESTED, message)
    if view.status.start_time is None:
        return Finding(ConditionType.SUSPENDED, True, Reason.SUSPEND_REQUESTED, "Suspended before it was started.")
    step, checkpoint = view.step, view.status.checkpoint
    if checkpoint is None:
        text = "No checkpoint was saved: the job starts over when it is resumed."
    else:
        text = f"Step {checkpoint.step} is saved."
    if blocked := blocked_by_finalizers(view.ended_pods):
        text += f" {blocked[0].upper()}{blocked[1:]}."
    if has_stopped(view) or step <= (checkpoint.step if checkpoint else 0):
        return Finding(ConditionType.SUSPENDED, True, Reason.CHECKPOINT_KEPT, text)
    return Finding(ConditionType.SUSPENDED, True, Reason.NO_CHECKPOINT_IN_TIME, f"{text} Step {step} was reached.")


def _degraded(view: JobView, facts: Facts) -> Finding:
    problem = view.problem
    if problem:
        place = f"{problem.field}: " if problem.field else ""
        return Finding(ConditionType.DEGRADED, True, problem.reason, place + problem.message)
    in_roles_ready = _released(facts) is None and not all(role.all_ready for role in facts.roles.values())
    if facts.refused and facts.suspension is Suspension.NONE and not in_roles_ready:
        return Finding(ConditionType.DEGRADED, True, facts.refused.reason, facts.refused.message)
    incomplete = [
        role for role, role_survey in facts.roles.items() if not (role_survey.all_ready or ROLES[role].every_pod_needed)
    ]
    if incomplete and facts.suspension is Suspension.NONE and has_trained(view):
        missing = ", ".join(f"{role} {facts.roles[role].by_pool}" for role in incomplete)
        return Finding(ConditionType.DEGRADED, True, Reason.ROLES_INCOMPLETE, f"{missing}.")
    return Finding(ConditionType.DEGRADED, False, Reason.AS_ASKED)


def updated(
    conditions: Sequence[Condition] | None, findings: Sequence[Finding], generation: int, now: datetime
) -> list[Condition]:
    """Returns the conditions after `findings`; types that none names stay as they are.

    Rule (source: Kubernetes API conventions, "Typical status properties"): `lastTransitionTime` is when `status` last
    changed, not reason or message.
    """
    result = {c.type: c for c in conditions or ()}
    for finding in findings:
        status = "True" if finding.holds else "False"
        old = result.get(finding.type)
        message = finding.message[:MESSAGE_LENGTH]
        unchanged = old if old is not None and old.status == status else None
        if unchanged and (unchanged.reason, unchanged.message, unchanged.observed_generation) == (
            finding.reason,
            message,
            generation,
        ):
            continue
        result[finding.type] = Condition(
            type=finding.type,
            status=status,
            reason=finding.reason,
            message=message,
            last_transition_time=unchanged.last_transition_time if unchanged else stamp(now),
            observed_generation=generation,
        )
    return sorted(result.values(), key=lambda c: _ORDER.get(c.type, len(_ORDER)))
