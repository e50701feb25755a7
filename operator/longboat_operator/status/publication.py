"""The whole status as it should be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from longboat_crds.base import Role
from longboat_crds.phases import PHASES, PhaseRule, rule_of
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import (
    OPERATOR_FIELDS,
    Allocation,
    Condition,
    Incarnation,
    Phase,
    Placement,
    RestartRecord,
    RLJobStatus,
    RuntimeStatus,
)
from longboat_operator.plan.failures import ended_before_last_step
from longboat_operator.plan.incarnations import granted, revoked
from longboat_operator.plan.placement import Stage
from longboat_operator.plan.records import Memories, all_released
from longboat_operator.plan.reward_cpus import ended
from longboat_operator.plan.suspension import Suspension
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import JobView
from longboat_operator.status.conditions import Facts, deleted_findings, final_findings, findings_of, updated
from longboat_operator.status.reported import reported_of
from longboat_operator.status.roles import NOWHERE, blocked_by_finalizers, roles_status, survey

HISTORY_LENGTH = 10

_OPERATOR_ATTRIBUTES = {
    name for name, info in RLJobStatus.model_fields.items() if (info.alias or name) in OPERATOR_FIELDS
}


def status_of(view: JobView, facts: Facts, now: datetime) -> RLJobStatus:
    """Returns the status of a job that is not finished."""
    old = view.status
    conditions = updated(old.conditions, list(findings_of(view, facts)), view.generation, now)
    phase = phase_of(conditions, wants_pods=facts.suspension is Suspension.NONE, has_pods=bool(view.all_pods))
    started = facts.suspension is Suspension.NONE and bool(view.all_pods)
    return old.model_copy(
        update={
            "observed_generation": view.generation,
            "operator": view.observed.release or old.operator,
            "phase": phase,
            "reason": reason_of(conditions, phase),
            "start_time": old.start_time or (stamp(now) if started else None),
            "suspend_time": _suspend_time(view, facts.suspension, now),
            "drain": facts.drain,
            "runtime": _runtime(view, facts) or old.runtime,
            "ray_token_secret": _ray_token(view, facts),
            "selector": ",".join(f"{k}={v}" for k, v in sorted(view.job.labels(Role.ROLLOUT).items())),
            "roles": roles_status(facts.roles, facts.counts, facts.reward_cpu),
            "reward_cpu": facts.reward_cpu,
            "allocation": _allocation(view, facts),
            "placement": _placement(view, facts),
            "reported": reported_of(view),
            "conditions": conditions,
            **_restarts(view, facts.counts),
        }
    )


def final_status(view: JobView, end: Finding, counts: Memories, now: datetime) -> RLJobStatus:
    """Returns the status of a job that has just ended."""
    conditions = updated(view.status.conditions, list(final_findings(end)), view.generation, now)
    phase = phase_of(conditions, wants_pods=False, has_pods=False)
    return view.status.model_copy(
        update={
            "observed_generation": view.generation,
            "phase": phase,
            "reason": end.reason,
            "completion_time": stamp(now),
            "suspend_time": None,
            "drain": None,
            "placement": None,
            "roles": roles_status(survey(view, NOWHERE, {}), all_released(view, counts)),
            "reward_cpu": view.status.reward_cpu and ended(view.status.reward_cpu),
            "reported": reported_of(view),
            "conditions": conditions,
            **_restarts(view, counts),
        }
    )


def with_findings(status: RLJobStatus, findings: Sequence[Finding], generation: int, now: datetime) -> RLJobStatus:
    """Returns the status with the conditions that these findings set; the others stay as they are."""
    return status.model_copy(update={"conditions": updated(status.conditions, findings, generation, now)})


def with_kept_pods(view: JobView, now: datetime) -> RLJobStatus:
    """Returns the status of a job that has ended, whose condition RolesReady names the pods that finalizers keep."""
    message = blocked_by_finalizers(view.ended_pods)
    ready = find(view.status.conditions, ConditionType.ROLES_READY)
    if message == (ready.message if ready else ""):
        return view.status
    finding = Finding(ConditionType.ROLES_READY, False, Reason.JOB_FINISHED, message)
    return with_findings(view.status, [finding], view.generation, now)


def deleted_status(
    view: JobView, finalizers: Sequence[str], refused: Finding | None, counts: Memories, now: datetime
) -> RLJobStatus:
    """Returns the status of a deleted job that had not ended, and that these finalizers keep."""
    findings = list(deleted_findings(view, finalizers, refused))
    conditions = updated(view.status.conditions, findings, view.generation, now)
    phase = phase_of(conditions, wants_pods=False, has_pods=bool(view.all_pods))
    return view.status.model_copy(
        update={
            "observed_generation": view.generation,
            "phase": phase,
            "reason": reason_of(conditions, phase),
            "roles": roles_status(survey(view, NOWHERE, {}), all_released(view, counts)),
            "reward_cpu": view.status.reward_cpu and ended(view.status.reward_cpu),
            "conditions": conditions,
        }
    )


def operator_part(status: RLJobStatus) -> dict[str, Any]:
    """Returns the fields that are set and that a job's plan owns, as JSON. The grant belongs to its capacity's plan."""
    part = status.model_dump(mode="json", by_alias=True, exclude_none=True, include=_OPERATOR_ATTRIBUTES)
    if "allocation" in part:
        part["allocation"].pop("grant", None)
    return part


def _suspend_time(view: JobView, suspension: Suspension, now: datetime) -> str | None:
    if suspension is Suspension.NONE:
        return None
    return view.status.suspend_time or stamp(now)


def _placement(view: JobView, facts: Facts) -> Placement | None:
    """Returns the job's placement. A suspended job has none, so that it starts over when it resumes."""
    if facts.waiting:
        return facts.waiting.placement
    return view.status.placement if facts.suspension is Suspension.SUSPENDING else None


def _runtime(view: JobView, facts: Facts) -> RuntimeStatus | None:
    template = facts.creation.template
    if template is None or template.is_new:
        return None
    reference = view.spec.runtime_ref
    return RuntimeStatus(kind=str(reference.kind), name=reference.name, revision=view.job.revision(template.number))


def _ray_token(view: JobView, facts: Facts) -> str | None:
    """Names the Secret with Ray's token; None before there is one, and while the job is suspended.

    A suspended job drops it with its last pod: nobody looks after the Secret until it resumes.
    """
    if facts.suspension is Suspension.SUSPENDED:
        return None
    return facts.creation.ray_token or view.status.ray_token_secret


def _allocation(view: JobView, facts: Facts) -> Allocation:
    old = view.status.allocation
    request = view.status.demand.incarnation_request if view.status.demand else None
    incarnation: Incarnation | None = old.incarnation if old else None
    is_resumed = view.suspended and view.all_pods
    is_released = facts.waiting is not None and facts.waiting.stage is Stage.RELEASED and not view.released
    if facts.suspension is Suspension.NONE and (ended_before_last_step(view) or is_resumed or is_released):
        incarnation = revoked(incarnation)
    incarnation = (
        granted(incarnation, request) if facts.suspension in {Suspension.NONE, Suspension.SUSPENDING} else incarnation
    )
    grant = old.grant if old else None
    return Allocation(incarnation=incarnation, rollout_replicas=facts.roles[Role.ROLLOUT].desired, grant=grant)


def _restarts(view: JobView, counts: Memories) -> dict[str, int | list[RestartRecord] | None]:
    news = [record for role in ROLES for record in counts[role].news]
    history = [*(view.status.restart_history or ()), *news][-HISTORY_LENGTH:]
    return {"restarts": sum(counts[role].restarts for role in ROLES), "restart_history": history or None}


def phase_of(conditions: Sequence[Condition], *, wants_pods: bool, has_pods: bool) -> Phase:
    """Chooses one word for people, from the conditions that machines read and from the job's pods.

    Rule: the first of the table's phases that holds.
    """
    return next(
        rule.phase
        for rule in PHASES
        if rule.wants_pods in {None, wants_pods} and rule.has_pods in {None, has_pods} and _rule_holds(rule, conditions)
    )


def _rule_holds(rule: PhaseRule, conditions: Sequence[Condition]) -> bool:
    """Whether the condition that the rule names is there, and says what the rule asks for; True for a rule that names none."""
    if rule.condition is None:
        return True
    condition = find(conditions, rule.condition)
    status = "True" if rule.status else "False"
    return (
        condition is not None and condition.status == status and (not rule.reasons or condition.reason in rule.reasons)
    )


def reason_of(conditions: Sequence[Condition], phase: Phase) -> str | None:
    """Returns the reason of the first condition explaining the phase that is True or, if the phase awaits it, not True.

    If there is none, it is that of the last one present; None if none is.
    """
    rule = rule_of(phase)
    explanatory = [condition for kind in rule.explained_by if (condition := find(conditions, kind))]
    explaining = [condition for condition in explanatory if (condition.status == "True") is not rule.awaited]
    return next((condition.reason for condition in (*explaining, *explanatory[-1:])), None)
