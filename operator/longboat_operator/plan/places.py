"""Which indices of a role should have a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, islice

from longboat_crds.base import Role
from longboat_operator.plan.leaving import Leaving
from longboat_operator.plan.losses import Loss
from longboat_operator.plan.records import is_past, remembered
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.view import JobView

Places = Mapping[Role, tuple[int, ...]]


def places_of(view: JobView, lost: Mapping[str, Loss], leaving: Leaving) -> Places:
    """Indices of every role, ascending; pods in `lost` (by uid) can't serve any more.

    Rule: the first so many, but for rollout pods, which may leave in any order.
    """
    rollout = _rollout_places(view, lost, leaving)
    return {
        role: rollout if role is Role.ROLLOUT else tuple(range(traits.desired(view.spec)))
        for role, traits in ROLES.items()
    }


def _rollout_places(view: JobView, lost: Mapping[str, Loss], leaving: Leaving) -> tuple[int, ...]:
    """Indices of rollout pods.

    Rule: every pod that serves, or may yet, and doesn't leave has its index, however many the grant allows, since only the
    grant's `leaving` says which go. As far as the grant allows more, those follow whose pod was lost, which are replaced,
    and then the lowest that have no pod. A job without a grant keeps what it has.
    """
    memory = remembered(view.published(Role.ROLLOUT))
    newest = {pod.index: pod for pod in view.pods[Role.ROLLOUT]}
    serving: list[int] = []
    vacated: list[int] = []
    for index in sorted(newest.keys() | memory.records.keys()):
        pod, record = newest.get(index), memory.records.get(index)
        if pod and not is_past(memory, pod):
            if pod.name not in leaving.named:
                (vacated if pod.uid in lost else serving).append(index)
        elif record and view.job.pod(Role.ROLLOUT, index, record.attempt) not in leaving.named:
            vacated.append(index)
    asked = view.grant.replicas if view.grant else max(view.spec.rollout.replicas, len(serving) + len(vacated))
    kept = [*serving, *vacated[: max(0, asked - len(serving))]]
    free = (index for index in count() if index not in newest and index not in kept)
    return tuple(sorted([*kept, *islice(free, max(0, asked - len(kept)))]))
