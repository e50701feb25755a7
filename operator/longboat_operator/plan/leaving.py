"""Rollout and environment pods that the job has to give back: which are still drained, which may go, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from longboat_crds.base import Role
from longboat_operator.plan.losses import Loss
from longboat_operator.plan.records import Memories, RoleCount, is_past
from longboat_operator.plan.suspension import may_checkpoint
from longboat_operator.pods.names import Place
from longboat_operator.pods.roles import SCALED_ROLES
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView, PodView


class Ground(Enum):
    """Says why a pod that leaves may be deleted."""

    DRAINED = auto()
    """The driver says that nothing runs there any more."""
    OVERDUE = auto()
    """Its deadline has passed."""
    UNUSED = auto()
    """It never got ready, so nothing ever ran there."""
    NO_DRIVER = auto()
    """No driver is up that could drain it."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A pod that may go from now on."""

    role: Role
    pod: str
    ground: Ground


@dataclass(frozen=True, slots=True)
class Leaving:
    """Holds what the grant takes back. `named` are all pods that it names, there or not.

    `draining` are the places of those that are still being drained, by role. `departures` are what this look has found; `wait` is the time
    until the next deadline.
    """

    named: frozenset[str] = frozenset()
    draining: Mapping[Role, frozenset[Place]] = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()
    wait: float | None = None


def leaving_of(view: JobView, memories: Memories, lost: Mapping[str, Loss], now: datetime) -> Leaving:
    """Judges the pods that the grant names.

    Rule: a pod goes once the current incarnation has listed it as drained, at its deadline, or at once if it never got ready or
    no driver is up that could drain it. One that is lost meanwhile (`lost`, by uid), or was given up before, counts as gone.
    """
    drained, names = view.drained_pods, set[str]()
    attended = may_checkpoint(view) and any(pod.ready for pod in view.pods[Role.DRIVER])
    draining: dict[Role, set[Place]] = {role: set() for role in SCALED_ROLES}
    departures: list[Departure] = []
    waits: list[float] = []
    for (role, _), grant in view.pods_granted.items():
        memory, pods = memories[role], {pod.name: pod for pod in view.pods[role]} if grant.leaving else {}
        for leaving in grant.leaving or ():
            names.add(leaving.pod)
            pod = pods.get(leaving.pod)
            if pod is None or pod.uid in lost or is_past(memory, pod):
                continue
            remaining = seconds_until(leaving.deadline, 0.0, now)
            if pod.name in drained:
                departures.append(Departure(role, pod.name, Ground.DRAINED))
            elif remaining <= 0:
                departures.append(Departure(role, pod.name, Ground.OVERDUE))
            elif not (pod.ready or _was_ready(memory, pod)):
                departures.append(Departure(role, pod.name, Ground.UNUSED))
            elif not attended:
                departures.append(Departure(role, pod.name, Ground.NO_DRIVER))
            else:
                draining[role].add(pod.place)
                waits.append(remaining)
    places = {role: frozenset(role_places) for role, role_places in draining.items()}
    return Leaving(frozenset(names), places, tuple(departures), min(waits, default=None))


def _was_ready(memory: RoleCount, pod: PodView) -> bool:
    record = memory.records.get(pod.place)
    return record is not None and record.attempt == pod.attempt and record.was_ready
