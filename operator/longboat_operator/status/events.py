"""Emits the events that a person would want to be told of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longboat_crds.base import Role
from longboat_crds.explanations import explain
from longboat_crds.reasons import ConditionType, Reason, ReasonGroup
from longboat_crds.status import Condition, CpuMoveOutcome, Phase, RestartRecord, RewardCpuStatus, RLJobStatus
from longboat_operator.model import EmitEvent
from longboat_operator.plan.leaving import Departure, Ground
from longboat_operator.plan.records import Memories
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import find, holds
from longboat_operator.reading.status import rollout_demand, rollout_grant
from longboat_operator.status.reported import digest_of

# Reasons that restarts, pod by pod, and scaling report; conditions don't repeat them.
_TOLD_ALREADY = frozenset(
    {
        Reason.CONTAINER_EXITED,
        Reason.DRIVER_SILENT,
        Reason.OUT_OF_MEMORY,
        Reason.POD_LOST,
        Reason.POD_STUCK,
        Reason.NODE_LOST,
        Reason.ROLES_INCOMPLETE,
    }
)

NORMAL = "Normal"
WARNING = "Warning"


_DEPARTURES = {
    Ground.DRAINED: (NORMAL, "Drained", "is drained and is deleted."),
    Ground.OVERDUE: (WARNING, "DrainDeadlineMissed", "was not drained by its deadline and is deleted."),
    Ground.UNUSED: (NORMAL, "Released", "never got ready and is deleted."),
    Ground.NO_DRIVER: (NORMAL, "Released", "is deleted: no driver is up that could drain it."),
}


def events_of(
    old: RLJobStatus, new: RLJobStatus, counts: Memories, departures: Sequence[Departure] = ()
) -> Iterator[EmitEvent]:
    """Yields events that report what has changed between two statuses, and which pods may leave from now on.

    Rules:
    * every restart in `news`, departure, new reshape and new refusal of CPUs is reported, and every move of CPUs in the new status that is
      newly done, incomplete or superseded;
    * so are most new phases, and a role's new number of pods while the phase of a started job stays the same;
    * a node with driver or trainer pods is reported when it becomes unschedulable;
    * a demand for rollout pods is reported when it begins to be limited;
    * a condition is reported when it has a new status or reason and says that something is wrong (its reason is not of progress). Each
      reason is reported once. Those in `_TOLD_ALREADY` are left to other events, and the end of the job to its phase;
    * counts and times alone are never reported: they are in the status.
    """
    for role in ROLES:
        yield from (_restart(record) for record in counts[role].news)
    yield from _drained(old, new)
    yield from _scaled(old, new)
    yield from _limited(old, new)
    for departure in departures:
        kind, reason, text = _DEPARTURES[departure.ground]
        yield EmitEvent(kind, reason, f"Role {departure.role}, pod {departure.pod} {text}")
    yield from _reshaped(old, new)
    yield from _cpus_moved(old, new)
    yield from _warnings(old, new)
    if new.phase != old.phase:
        yield from _phase(old, new)


def _restart(record: RestartRecord) -> EmitEvent:
    kind = WARNING if _is_wrong(record.reason) else NORMAL
    return EmitEvent(kind, record.reason, f"Role {record.role}, pod {record.pod}: {record.message}")


def _drained(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    if new.drain and (nodes := sorted(set(new.drain.nodes) - set(old.drain.nodes if old.drain else ()))):
        text = (
            f"Driver or trainer pods are on unschedulable nodes ({', '.join(nodes)}): they may be evicted once step {new.drain.step} is "
            "saved, at the latest after checkpoint.graceSeconds."
        )
        yield EmitEvent(NORMAL, "NodeCordoned", text)


def _scaled(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    if not (old.roles and new.roles and old.phase == new.phase and old.start_time):
        return
    for role in ROLES:
        before, after = getattr(old.roles, role), getattr(new.roles, role)
        if before and after and before.desired != after.desired:
            why = _reason_of(new, after.desired) if role is Role.ROLLOUT else None
            numbers = f"Role {role} from {before.desired} to {after.desired} pods"
            yield EmitEvent(NORMAL, "Scaled", f"{numbers}: {why}" if why else f"{numbers}.")


def _reason_of(status: RLJobStatus, replicas: int) -> str | None:
    """Returns the reason of the driver's demand if it asked for, and was granted, exactly so many rollout pods; else None."""
    demand, grant = rollout_demand(status), rollout_grant(status)
    if demand and grant and grant.answers == demand.number and demand.replicas == grant.replicas == replicas:
        return demand.reason
    return None


def _limited(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    if not (new.reported and new.reported.demand_limited) or (old.reported and old.reported.demand_limited):
        return
    demand, grant = rollout_demand(new), rollout_grant(new)
    if demand and grant:
        bound = "rollout.replicas" if demand.replicas > grant.replicas else "rollout.minReplicas"
        why = f" ({demand.reason})" if demand.reason else ""
        text = (
            f"The driver asks for {demand.replicas} rollout pods{why} and gets {grant.replicas}, the bound of {bound}."
        )
        yield EmitEvent(NORMAL, "DemandLimited", text)


def _reshaped(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    reported = set((old.reported.reshapes if old.reported else None) or ())
    to_tell = set((new.reported.reshapes if new.reported else None) or ()) - reported
    for reshape in (new.training.reshapes if new.training else None) or ():
        if (name := digest_of(reshape)) not in to_tell:
            continue
        to_tell.remove(name)
        if reshape.failure:
            text = f"Engines keep tensorParallel {reshape.tensor_parallel} after step {reshape.step}: {reshape.failure} ({reshape.reason})"
            yield EmitEvent(WARNING, "ReshapeFailed", text)
        else:
            text = f"Engines have tensorParallel {reshape.tensor_parallel} after step {reshape.step}, in {reshape.seconds} s: {reshape.reason}"
            yield EmitEvent(NORMAL, "Reshaped", text)


def _cpus_moved(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    before, after = old.reward_cpu or RewardCpuStatus(total="0", used="0"), new.reward_cpu
    if after is None:
        return
    for refusal in after.refusals or ():
        if any((refusal.pod, refusal.times) == (earlier.pod, earlier.times) for earlier in before.refusals or ()):
            continue
        sources = [pool.name for pool in refusal.sources or ()]
        back = f"; they go back to pool{'s' if sources[1:] else ''} {' and '.join(sources)}" if sources else ""
        detail = f": {refusal.message}" if refusal.message else ""
        text = (
            f"Pod {refusal.pod} on node {refusal.node or '?'} can't have {refusal.cpu} CPUs ({refusal.outcome}{detail}) and keeps what it has{back}. "
            f"Tried again after {refusal.until}."
        )
        yield EmitEvent(WARNING, "CPUsRefused", text)
    told_moves = {(move.time, move.source, move.target): move.outcome for move in before.moves or ()}
    for move in after.moves or ():
        if told_moves.get((move.time, move.source, move.target)) == move.outcome:
            continue
        place = f"from reward pool {move.source} to {move.target}" if move.source else f"to reward pool {move.target}"
        why = f": {move.reason}" if move.reason else "."
        if move.outcome is CpuMoveOutcome.DONE:
            yield EmitEvent(NORMAL, "CPUsMoved", f"{move.cpu} CPUs {place} in {move.seconds} s{why}")
        elif move.outcome is CpuMoveOutcome.INCOMPLETE:
            yield EmitEvent(WARNING, "CPUsNotMoved", f"Not all of {move.cpu} CPUs could be moved {place}{why}")
        elif move.outcome is CpuMoveOutcome.SUPERSEDED:
            text = f"{move.cpu} CPUs were on their way {place} when CPUs were divided anew{why}"
            yield EmitEvent(NORMAL, "CPUMoveSuperseded", text)


def _warnings(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    warned: set[str] = set(_TOLD_ALREADY)
    for condition in new.conditions or ():
        before = find(old.conditions, condition.type)
        news = before is None or (before.status, before.reason) != (condition.status, condition.reason)
        final = condition.type in {ConditionType.SUCCEEDED, ConditionType.FAILED}
        if news and not final and condition.reason not in warned and _is_wrong(condition.reason):
            warned.add(condition.reason)
            yield EmitEvent(WARNING, condition.reason, condition.message)


def _is_wrong(reason: str) -> bool:
    explanation = explain(reason)
    return explanation is None or explanation.group is not ReasonGroup.PROGRESS


def _phase(old: RLJobStatus, new: RLJobStatus) -> Iterator[EmitEvent]:
    match new.phase:
        case Phase.QUEUED | Phase.STARTING if old.phase in {None, Phase.PENDING, Phase.SUSPENDED}:
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
        case Phase.TERMINATING:
            yield EmitEvent(NORMAL, "Terminating", _message(new, ConditionType.RUNNING))
        case Phase.SUCCEEDED:
            yield EmitEvent(NORMAL, "Succeeded", _message(new, ConditionType.SUCCEEDED))
        case Phase.FAILED:
            yield EmitEvent(WARNING, "Failed", f"{new.reason}: {_message(new, ConditionType.FAILED)}")
        case _:
            return


def _message(status: RLJobStatus, kind: ConditionType) -> str:
    condition: Condition | None = find(status.conditions, kind)
    return condition.message if condition else ""
