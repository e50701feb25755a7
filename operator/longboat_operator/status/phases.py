"""The phase, and the reason that explains it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Condition, Phase
from longboat_operator.plan.suspension import Stage
from longboat_operator.reading.conditions import find, holds

_EXPLAINS = {
    Phase.STARTING: (ConditionType.ROLES_READY, ConditionType.RUNNING),
    Phase.RESTARTING: (ConditionType.ROLES_READY, ConditionType.RUNNING),
    Phase.PENDING: (ConditionType.RUNTIME_RESOLVED, ConditionType.SCHEDULED),
}


def phase_of(conditions: Sequence[Condition], stage: Stage, *, has_pods: bool) -> Phase:
    """One word for people, from the conditions that machines read."""
    if holds(conditions, ConditionType.SUCCEEDED):
        return Phase.SUCCEEDED
    if holds(conditions, ConditionType.FAILED):
        return Phase.FAILED
    if stage is Stage.SUSPENDED:
        return Phase.SUSPENDED
    if stage in {Stage.SUSPENDING, Stage.RELEASING}:
        return Phase.SUSPENDING
    running = find(conditions, ConditionType.RUNNING)
    if running and running.status == "True":
        return Phase.RUNNING
    if running and running.reason in {Reason.RESTARTING, Reason.HEAD_LOST}:
        return Phase.RESTARTING
    return Phase.STARTING if has_pods else Phase.PENDING


def reason_of(conditions: Sequence[Condition], phase: Phase) -> str | None:
    """Reason of the condition that explains the phase: what is not yet so, or that which is."""
    if phase in _EXPLAINS:
        unmet = [c for kind in _EXPLAINS[phase] if (c := find(conditions, kind)) and c.status != "True"]
        return unmet[0].reason if unmet else None
    kind = {
        Phase.SUCCEEDED: ConditionType.SUCCEEDED,
        Phase.FAILED: ConditionType.FAILED,
        Phase.SUSPENDED: ConditionType.SUSPENDED,
        Phase.SUSPENDING: ConditionType.SUSPENDED,
    }.get(phase, ConditionType.RUNNING)
    if phase is Phase.RUNNING and holds(conditions, ConditionType.DEGRADED):
        kind = ConditionType.DEGRADED
    found = find(conditions, kind)
    return found.reason if found else None
