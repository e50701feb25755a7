"""What became of each pod, counted once: the operator's memory of a role. Pure.

A pod that is gone can't be asked any more, and a plan may be made twice, or not for a while. So the status keeps, for
every index, the newest attempt seen and the container restarts counted of it; comparing that with the pods there are
now gives what is new since, however many plans lie between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.reasons import Reason
from longboat_crds.status import PodRecord, RestartRecord, RoleStatus
from longboat_operator.plan.losses import Loss, loss_of
from longboat_operator.plan.view import PodView
from longboat_operator.pods.names import JobRef
from longboat_operator.status.terminations import last_termination, restart_count
from longboat_operator.status.times import stamp

MESSAGE_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class RoleCount:
    """A role's memory after a look at its pods.

    `records` are by index, without indices that were never made; `news` are the restarts found by this look.
    """

    records: Mapping[int, PodRecord] = field(default_factory=dict)
    restarts: int = 0
    recent_restarts: int = 0
    restart_step: int | None = None
    next_attempt: int = 0
    news: tuple[RestartRecord, ...] = ()

    def since(self, step: int) -> int:
        """Restarts since the last new step, given the highest step."""
        return 0 if self.restart_step is not None and step > self.restart_step else self.recent_restarts


def remembered(role: RoleStatus | None) -> RoleCount:
    """The memory as published."""
    if role is None:
        return RoleCount()
    return RoleCount(
        records={record.index: record for record in role.pods or ()},
        restarts=role.restarts,
        recent_restarts=role.recent_restarts,
        restart_step=role.restart_step,
        next_attempt=role.next_attempt,
    )


def released(memory: RoleCount, pods: Sequence[PodView], keep: int = 0) -> RoleCount:
    """Memory without indices from `keep` on, whose pods are deleted on purpose: that is no loss.

    Their attempt numbers stay used up, so a pod that is made later has a higher one.
    """
    gone = [r.attempt for i, r in memory.records.items() if i >= keep] + [p.attempt for p in pods if p.index >= keep]
    return replace(
        memory,
        records={i: r for i, r in memory.records.items() if i < keep},
        next_attempt=max([memory.next_attempt, *(attempt + 1 for attempt in gone)]),
    )


def count(
    job: JobRef, role: Role, memory: RoleCount, pods: Sequence[PodView], desired: int, step: int, now: datetime
) -> RoleCount:
    """Memory after a look at the role's pods.

    Rules:
    * a pod whose record is missing or older is new, and begins with no restarts counted;
    * each restart of a container counts one, each loss of a pod counts one;
    * a record whose pod is not there is a loss too: somebody deleted it between two looks;
    * `recent_restarts` are those since the last new step: when `step` is above `restart_step` it begins anew. A step
      that is done again after a rollback is not new, so a job that fails at the same place for ever reaches its limit.
    """
    anew = memory.restart_step is None or step > memory.restart_step
    newest = {pod.index: pod for pod in pods}
    records: dict[int, PodRecord] = {}
    news: list[RestartRecord] = []
    restarts = 0
    for index in range(desired):
        record = _current(memory, index, newest.get(index), anew=anew)
        if record is None:
            continue
        records[index] = record
        if record.lost_time is not None:
            continue
        pod = newest.get(index)
        pod = pod if pod and pod.attempt == record.attempt else None
        loss = loss_of(pod) if pod else Loss(Reason.POD_LOST, "it vanished")
        if pod and (more := restart_count(pod.raw) - record.restarts) > 0:
            restarts += more
            news.append(_restart(role, pod, now))
            records[index] = record = record.model_copy(update={"restarts": record.restarts + more})
        if loss:
            restarts += 1
            news.append(_record(role, job.pod(role, index, record.attempt), loss.reason, loss.message, now))
            losses = (0 if anew else record.losses) + 1
            records[index] = record.model_copy(update={"losses": losses, "lost_time": stamp(now)})
    memory = replace(released(memory, pods, keep=desired), records=records, news=tuple(news))
    if not restarts:
        return memory
    return replace(
        memory,
        restarts=memory.restarts + restarts,
        recent_restarts=restarts if anew else memory.recent_restarts + restarts,
        restart_step=max(step, memory.restart_step or 0),
    )


def _current(memory: RoleCount, index: int, newest: PodView | None, *, anew: bool) -> PodRecord | None:
    """The record to go on from: of the newest pod if it is new, else as remembered. None: no pod was made yet."""
    old = memory.records.get(index)
    if newest and newest.attempt >= (old.attempt + 1 if old else memory.next_attempt):
        return PodRecord(index=index, attempt=newest.attempt, losses=old.losses if old and not anew else 0)
    if old and old.lost_time and newest and newest.attempt == old.attempt and loss_of(newest) is None:
        # Taken for lost by mistake: the snapshot had missed it.
        return old.model_copy(update={"lost_time": None})
    return old


def _restart(role: Role, pod: PodView, now: datetime) -> RestartRecord:
    ended = last_termination(pod.raw)
    if ended is None:
        return _record(role, pod.name, Reason.CONTAINER_EXITED, "a container was started again", now)
    return _record(role, pod.name, ended.reason, ended.text, now)


def _record(role: Role, pod: str, reason: Reason, message: str, now: datetime) -> RestartRecord:
    return RestartRecord(role=str(role), pod=pod, reason=reason, message=message[:MESSAGE_LENGTH], time=stamp(now))
