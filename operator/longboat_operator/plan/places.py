"""Decides which places of a role should have a pod. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, count, islice

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

    Rule: those that the spec asks for; of pods whose number is granted, which may leave in any order, see `_granted_places`.
    """
    return {
        role: tuple(
            chain.from_iterable(
                _granted_places(view, role, pool, replicas, memories[role], lost, leaving)
                for pool, replicas in _asked_for(traits.places(view.spec), () if traits.pools else ("",)).items()
            )
        )
        if traits.scaled
        else traits.places(view.spec)
        for role, traits in ROLES.items()
    }


def _asked_for(places: tuple[Place, ...], pools: Iterable[str]) -> Mapping[str, int]:
    """Counts the places of each pool, of these pools at least."""
    return {**dict.fromkeys(pools, 0), **Counter(place.pool for place in places)}


def _granted_places(
    view: JobView,
    role: Role,
    pool: str,
    replicas: int,
    memory: RoleCount,
    lost: Mapping[str, Loss],
    leaving: Leaving,
) -> tuple[Place, ...]:
    """Returns the places of pods whose number is granted: rollout pods (of no `pool`), or those of an environment pool.

    Rule: every pod that serves, or may yet, and doesn't leave has its place, however many the grant allows, since only the
    grant's `leaving` says which go. As far as the grant allows more, those follow whose pod was lost, which are replaced,
    and then the lowest that have no pod. Without a grant, the job keeps what it has, filled up to `replicas` of the spec.
    """
    newest = {pod.place: pod for pod in view.pods[role] if pod.place.pool == pool}
    serving: list[Place] = []
    vacated: list[Place] = []
    for place in sorted(newest.keys() | {place for place in memory.records if place.pool == pool}):
        pod, record = newest.get(place), memory.records.get(place)
        if pod and not is_past(memory, pod):
            if pod.name not in leaving.named:
                (vacated if pod.uid in lost else serving).append(place)
        elif record and view.job.pod(role, place, record.attempt) not in leaving.named:
            vacated.append(place)
    grant = view.pods_granted.get((role, pool))
    wanted = grant.replicas if grant else max(replicas, len(serving) + len(vacated))
    occupied = [*serving, *vacated[: max(0, wanted - len(serving))]]
    free = (place for index in count() if (place := Place(pool, index)) not in newest and place not in occupied)
    return tuple(sorted([*occupied, *islice(free, max(0, wanted - len(occupied)))]))
