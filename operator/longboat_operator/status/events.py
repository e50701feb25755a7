"""What a person would want to be told. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from longboat_crds.base import Role
from longboat_crds.explanations import explain
from longboat_crds.reasons import ConditionType, Reason, ReasonGroup
from longboat_crds.status import Condition, Phase, RestartRecord, RLJobStatus
from longboat_operator.model import EmitEvent
from longboat_operator.plan.records import RoleCount
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import find, holds

# Reported by restarts, pod by pod, and by scaling; conditions don't repeat it.
_TOLD_ALREADY = frozenset(
    {
        Reason.CONTAINER_EXITED,
        Reason.OUT_OF_MEMORY,
        Reason.POD_LOST,
        Reason.POD_STUCK,
        Reason.NODE_LOST,
        Reason.ROLES_INCOMPLETE,
    }
)

NORMAL = "Normal"
WARNING = "Warning"


def events_of(old: RLJobStatus, new: RLJobStatus, counts: Mapping[Role, RoleCount]) -> Iterator[EmitEvent]:
    """Events that report what has changed between two statuses.

    Rule: phases and restarts always; a condition when it says for the first time, or for a new reason, that something
    is wrong (its reason is not of progress) that no other event reports. Counts and times never: they are in the status.
    """
    for role in ROLES:
        yield from (_restart(record) for record in counts[role].news)
    yield from _scaled(old, new)
    yield from _warnings(old, new)
    if new.phase != old.phase:
        yield from _phase(old, new)


def _restart(record: RestartRecord) -> EmitEvent:
    kind = WARNING if _is_wrong(record.reason) else NORMAL
    return EmitEvent(kind, record.reason, f"Role {record.role}, pod {record.pod}: {record.message}")


def _scaled(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    if not (old.roles and new.roles and old.phase == new.phase and old.start_time):
        return
    for role in ROLES:
        before, after = getattr(old.roles, role), getattr(new.roles, role)
        if before and after and before.desired != after.desired:
            yield EmitEvent(NORMAL, "Scaled", f"Role {role} from {before.desired} to {after.desired} pods.")


def _warnings(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    told: set[str] = set(_TOLD_ALREADY)
    for condition in new.conditions or ():
        before = find(old.conditions, condition.type)
        news = before is None or (before.status, before.reason) != (condition.status, condition.reason)
        final = condition.type in {ConditionType.SUCCEEDED, ConditionType.FAILED}
        if news and not final and condition.reason not in told and _is_wrong(condition.reason):
            told.add(condition.reason)
            yield EmitEvent(WARNING, condition.reason, condition.message)


def _is_wrong(reason: str) -> bool:
    explanation = explain(reason)
    return explanation is None or explanation.group is not ReasonGroup.PROGRESS


def _phase(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    match new.phase:
        case Phase.STARTING if old.phase is not Phase.SUSPENDING:
            resumed = holds(old.conditions, ConditionType.SUSPENDED)
            revision = f" by {new.runtime.revision}" if new.runtime else ""
            yield EmitEvent(NORMAL, "Resumed" if resumed else "Started", f"Pods are being created{revision}.")
        case Phase.RUNNING:
            step = new.training.step if new.training else 0
            yield EmitEvent(NORMAL, "Running", f"Rounds run, from step {step} on." if step else "Rounds run.")
        case Phase.SUSPENDING:
            yield EmitEvent(NORMAL, "Suspending", "Waiting for a final checkpoint, then pods are deleted.")
        case Phase.SUSPENDED:
            yield EmitEvent(NORMAL, "Suspended", _message(new, ConditionType.SUSPENDED))
        case Phase.SUCCEEDED:
            yield EmitEvent(NORMAL, "Succeeded", _message(new, ConditionType.SUCCEEDED))
        case Phase.FAILED:
            yield EmitEvent(WARNING, "Failed", f"{new.reason}: {_message(new, ConditionType.FAILED)}")
        case _:
            return


def _message(status: RLJobStatus, kind: ConditionType) -> str:
    found: Condition | None = find(status.conditions, kind)
    return found.message if found else ""
