"""Decides which pods are deleted, and when the Secret with their token is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from longboat_crds.reasons import Reason
from longboat_operator.model import DeleteObject, Target
from longboat_operator.plan.losses import Loss, loss_of
from longboat_operator.plan.places import Places
from longboat_operator.plan.records import Memories, RoleCount, is_past
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.view import JobView, PodView
from longboat_operator.rejections import WITHOUT_ITS_LABEL

# A kubelet that responds has ended a pod's containers by its deletionTimestamp, and needs little longer to clean up.
STUCK_SECONDS = 60.0
# One whose node is tainted as gone has been silent for much longer than that already.
LOST_NODE_SECONDS = 10.0
# A deletionTimestamp and the `Date` headers that `now` comes from are truncated to seconds, and the clocks of API servers differ a little.
INEXACT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Removal:
    """Lists what to delete; `wait` is the time until a pod that does not go counts as stuck."""

    actions: tuple[DeleteObject, ...] = ()
    wait: float | None = None


def removal_of(pods: Iterable[PodView], now: datetime) -> Removal:
    """Deletes pods, highest index first; by force those that their kubelet does not end.

    Rule: a pod still there `STUCK_SECONDS` after its deletionTimestamp will not be ended by its node; only then may its place be taken
    without the node's word. Where Kubernetes says that the node is gone, it is `LOST_NODE_SECONDS`. What may still run there is fenced off
    by its incarnation and by Ray's new head. `INEXACT_SECONDS` are added so that none is deleted too early. A pod that has ended is left to
    its finalizers.
    """
    actions: list[DeleteObject] = []
    waits: list[float] = []
    for pod in sorted(pods, key=lambda p: -p.place.index):
        if pod.ended:
            continue
        if pod.deleted_at is None:
            actions.append(DeleteObject("Pod", pod.name, pod.uid))
            continue
        loss = loss_of(pod)
        patience = LOST_NODE_SECONDS if loss and loss.reason is Reason.NODE_LOST else STUCK_SECONDS
        remaining = patience + INEXACT_SECONDS - (now - pod.deleted_at).total_seconds()
        if remaining > 0:
            waits.append(remaining)
        else:
            actions.append(DeleteObject("Pod", pod.name, pod.uid, grace_seconds=0))
    return Removal(tuple(actions), min(waits, default=None))


def token_removal(view: JobView, *, pods_end: bool) -> tuple[DeleteObject, ...]:
    """Deletes the Secret with Ray's token once no pod of the job can use it any more: `pods_end` says that none will be created.

    A job that resumes gets another one. Without the right to delete, Secrets stay as long as the job.
    """
    name = view.status.ray_token_secret
    if name is None or not pods_end or view.all_pods or not view.observed.may_delete:
        return ()
    return (DeleteObject("Secret", name, None),)


def missing_pods(view: JobView, memories: Memories) -> tuple[Target, ...]:
    """Lists the pods to look up, which the watch doesn't show: recorded ones that aren't known to be gone, and those whose name was found taken."""
    names = [
        view.job.pod(role, place, record.attempt)
        for role in ROLES
        for place, record in memories[role].records.items()
        if not record.gone
    ]
    names += [name for name, answer in view.observed.rejections.items() if WITHOUT_ITS_LABEL in answer]
    return tuple(("Pod", name) for name in dict.fromkeys(names) if not view.is_known("Pod", name))


def pods_to_remove(view: JobView, memories: Memories, lost: Mapping[str, Loss], places: Places) -> Iterator[PodView]:
    """Yields the pods of a running job that must go. Those in `lost` (by uid) can't serve any more; `places` should have a pod.

    Rules, judged by the published status (`memories`), so that a pod's failure is recorded before the pod goes:
    * pods whose loss is recorded go, and pods of attempts that were given up (released, or older than the newest);
    * so do pods with another Ray token than the job's;
    * pods without a place go once every place has a pod.
    """
    if all({pod.place for pod in view.pods[role]}.issuperset(places[role]) for role in ROLES):
        yield from view.unplaced
    token = view.status.ray_token_secret
    for role in ROLES:
        memory = memories[role]
        for pod in view.pods[role]:
            given_up = is_past(memory, pod) or (token is not None and pod.ray_token != token)
            if given_up or (pod.uid in lost and _is_recorded(memory, pod)):
                yield pod


def _is_recorded(memory: RoleCount, pod: PodView) -> bool:
    record = memory.records.get(pod.place)
    return record is not None and record.attempt == pod.attempt and record.lost_time is not None
