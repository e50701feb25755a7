"""Decides which places of a role should have a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, islice

from longboat_crds.base import Role
from longboat_operator.plan.leaving import Leaving
from longboat_operator.plan.losses import Loss
from longboat_operator.plan.records import Memories, RoleCount, is_past
from longboat_operator.pods.names import Place
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.view import JobView

Places = Mapping[Role, tuple[Place, ...]]


def places_of(view: JobView, memories: Memories, lost: Mapping[str, Loss], leaving: Leaving) -> Places:
    """Returns the places of every role; pods in `lost` (by uid) can't serve any more.

    Rule: those that the spec asks for; of rollout pods, which may leave in any order, see `_rollout_places`.
    """
    rollout = _rollout_places(view, memories[Role.ROLLOUT], lost, leaving)
    return {role: rollout if role is Role.ROLLOUT else traits.places(view.spec) for role, traits in ROLES.items()}


def _rollout_places(view: JobView, memory: RoleCount, lost: Mapping[str, Loss], leaving: Leaving) -> tuple[Place, ...]:
    """Returns the places of rollout pods.

    Rule: every pod that serves, or may yet, and doesn't leave has its place, however many the grant allows, since only the
    grant's `leaving` says which go. As far as the grant allows more, those follow whose pod was lost, which are replaced,
    and then the lowest that have no pod. Without a grant, the job keeps what it has, filled up to spec.rollout.replicas.
    """
    newest = {pod.place: pod for pod in view.pods[Role.ROLLOUT]}
    serving: list[Place] = []
    vacated: list[Place] = []
    for place in sorted(newest.keys() | memory.records.keys()):
        pod, record = newest.get(place), memory.records.get(place)
        if pod and not is_past(memory, pod):
            if pod.name not in leaving.named:
                (vacated if pod.uid in lost else serving).append(place)
        elif record and view.job.pod(Role.ROLLOUT, place, record.attempt) not in leaving.named:
            vacated.append(place)
    wanted = view.grant.replicas if view.grant else max(view.spec.rollout.replicas, len(serving) + len(vacated))
    occupied = [*serving, *vacated[: max(0, wanted - len(serving))]]
    free = (place for index in count() if (place := Place("", index)) not in newest and place not in occupied)
    return tuple(sorted([*occupied, *islice(free, max(0, wanted - len(occupied)))]))
