"""Decides when driver and trainer pods may be evicted from nodes that are being drained: once the driver has saved. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.status import DrainStatus, TrainingState
from longboat_operator.model import Action, ApplyObject, digest
from longboat_operator.plan.losses import loss_of
from longboat_operator.plan.surroundings import is_as_applied, marked
from longboat_operator.pods.budget import BUDGET_ROLES, disruption_budget
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.times import seconds_until, stamp
from longboat_operator.reading.view import JobView

BUDGET = "PodDisruptionBudget"


@dataclass(frozen=True, slots=True)
class Drain:
    """What the status says of a drain, the update of the budget, and the seconds after which the budget opens at the latest."""

    status: DrainStatus | None = None
    actions: tuple[Action, ...] = ()
    wait: float | None = None


def drain_of(view: JobView, runtime: RLRuntimeSpec | None, lost: Collection[str], now: datetime) -> Drain:
    """Decides whether the pods that rounds can't do without may be evicted; those in `lost` (by uid) don't matter any more.

    `runtime` is the template in force, None if there is none.

    Rules:
    * whatever empties a node, such as `kubectl drain`, makes it `unschedulable` first. While no node of these pods is, a budget allows no
      eviction of a healthy one. There is no budget before the driver first reports, since there is nothing to save;
    * a node that becomes unschedulable is published, which asks the driver to save;
    * evictions are allowed once the checkpoint holds the step that was committed then, after `checkpoint.graceSeconds`, or if no driver is
      training, since nothing more would be saved. They stay allowed until none of these pods is on such a node;
    * an operator that may not watch nodes makes no budget, which would never open, and opens one that it finds. Until nodes have been
      listed, everything stays as it is.
    """
    if not view.observed.may_watch_nodes:
        return Drain(actions=opened(view, runtime))
    cordoned = view.observed.cordoned
    if cordoned is None:
        return Drain(view.status.drain)
    pods = [pod for role in BUDGET_ROLES for pod in view.pods[role] if pod.uid not in lost]
    nodes = sorted({pod.node for pod in pods if pod.node in cordoned})
    drain = _noted(view, nodes, now)
    remaining = seconds_until(drain.since, view.spec.checkpoint.grace_seconds, now) if drain else 0.0
    if drain and (remaining <= 0 or not _waits_for_driver(view, drain)):
        return Drain(drain, opened(view, runtime))
    least = sum(len(ROLES[role].places(view.spec)) for role in BUDGET_ROLES)
    trains = pods and view.training is not None
    return Drain(drain, _budget(view, runtime, least) if trains else (), remaining if drain else None)


def opened(view: JobView, runtime: RLRuntimeSpec | None) -> tuple[Action, ...]:
    """Returns what makes the job's budget allow every eviction; nothing if it has none."""
    return _budget(view, runtime, 0) if view.child(BUDGET, view.job.name) else ()


def _noted(view: JobView, nodes: list[str], now: datetime) -> DrainStatus | None:
    """Returns what to publish about these nodes. A new one makes the driver save again, and restarts the grace period."""
    if not nodes:
        return None
    published = view.status.drain
    if published and set(nodes) <= set(published.nodes):
        return published.model_copy(update={"nodes": nodes})
    return DrainStatus(since=stamp(now), step=view.step, nodes=nodes)


def _waits_for_driver(view: JobView, drain: DrainStatus) -> bool:
    """Whether a driver is training and hasn't saved the step yet, or its own if it had to go back to an earlier one."""
    trains = view.training is not None and view.training.state is TrainingState.RUNNING
    if not trains or all(loss_of(pod) for pod in view.pods[Role.DRIVER]):
        return False
    saved = view.status.checkpoint.step if view.status.checkpoint else 0
    return saved < min(drain.step, view.step)


def _budget(view: JobView, runtime: RLRuntimeSpec | None, least: int) -> tuple[Action, ...]:
    job = view.job.with_common(view.spec, runtime)
    body = disruption_budget(job, least)
    mark = digest(body)
    live = view.child(BUDGET, job.name)
    if live is not None and ("deletionTimestamp" in live["metadata"] or is_as_applied(live, mark)):
        return ()
    return (ApplyObject(marked(body, mark), live["metadata"]["uid"] if live else None),)
