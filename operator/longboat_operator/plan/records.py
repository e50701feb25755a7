"""Records what happened to each pod, counted once: the operator's memory of a role. Pure.

A pod that is gone can't be asked any more, and a plan may be made twice, or not for a while. So the status keeps, for
every place, the newest attempt seen and how many of its container restarts have been counted; comparing that with the
present pods shows what is new, however many plans lie between. Pods to which nothing has happened share a record (`IntactPods`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.reasons import Reason
from longboat_crds.status import FAILURE_LENGTH, INCIDENTS, IntactPods, PodRecord, RestartRecord, RoleStatus
from longboat_operator.plan.incidents import INCIDENT, Incidents, explained
from longboat_operator.plan.losses import Loss, Lost
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.reading.intact import compact, is_intact, records_of
from longboat_operator.reading.terminations import Termination, terminations
from longboat_operator.reading.times import moment, stamp
from longboat_operator.reading.view import JobView, PodView

# What `PodRecord.failed` says of a pod that was lost as a whole; no container of ours has this name.
POD = "pod"


@dataclass(frozen=True, slots=True)
class RoleCount:
    """A role's memory after a look at its pods.

    `records` are by place, without places that never had a pod; `news` are the restarts found by this look.
    """

    records: Mapping[Place, PodRecord] = field(default_factory=dict)
    restarts: int = 0
    incidents: Incidents = field(default_factory=Incidents)
    restart_step: int | None = None
    next_attempt: int = 0
    news: tuple[RestartRecord, ...] = ()

    def since(self, step: int) -> int:
        """Counts the incidents since the last new step, given the step that is committed now."""
        return 0 if self.restart_step is not None and step > self.restart_step else len(self.incidents.times)


Memories = Mapping[Role, RoleCount]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the pod of a place: of a container, or of the pod as a whole (`POD`)."""

    place: Place
    what: str
    pod: str
    reason: Reason
    message: str
    time: datetime
    counted: bool = True


def place_of(record: PodRecord) -> Place:
    """Returns the place that the record is about."""
    return Place(record.pool or "", record.index)


def remembered(role: RoleStatus | None) -> RoleCount:
    """Returns the memory as published; an empty one if none is."""
    if role is None:
        return RoleCount()
    return RoleCount(
        records={place_of(record): record for record in records_of(role)},
        restarts=role.restarts,
        incidents=Incidents(tuple(map(moment, role.incidents or ()))),
        restart_step=role.restart_step,
        next_attempt=role.next_attempt,
    )


def published_records(memory: RoleCount) -> dict[str, list[PodRecord] | list[IntactPods] | None]:
    """Returns the records as fields of the role's status, those of intact pods in their compact form.

    Rule: a pod whose attempt is below `next_attempt` keeps its record. Versions that don't know the compact form would take it for one
    that was given up.
    """
    intact: list[PodRecord] = []
    others: list[PodRecord] = []
    for _, record in sorted(memory.records.items()):
        (intact if record.attempt >= memory.next_attempt and is_intact(record) else others).append(record)
    return {"pods": others or None, "intact": compact(intact) or None}


def released(memory: RoleCount, pods: Sequence[PodView], keep: Collection[Place] = ()) -> RoleCount:
    """Returns the memory of the places `keep` alone; the others' pods are deleted on purpose, which is no loss.

    Their attempt numbers stay used up, so a pod that is created later at such a place has a higher one.
    """
    gone = [r.attempt for i, r in memory.records.items() if i not in keep]
    gone += [p.attempt for p in pods if p.place not in keep]
    if not gone:
        return memory
    records = {i: r for i, r in memory.records.items() if i in keep}
    return replace(memory, records=records, next_attempt=max(memory.next_attempt, *(attempt + 1 for attempt in gone)))


def all_released(view: JobView, memories: Memories) -> Memories:
    """Returns the memories with all pods released, but for those that the watch doesn't show: they are looked up until they are gone."""
    return {role: released(memories[role], view.pods[role], view.unwatched_places(role)) for role in memories}


def is_past(memory: RoleCount, pod: PodView) -> bool:
    """Whether the pod is of an attempt that was given up: released, or older than the newest."""
    record = memory.records.get(pod.place)
    return pod.attempt < (record.attempt if record else memory.next_attempt)


def dismissed(memory: RoleCount, pods: Sequence[PodView], message: str, now: datetime) -> RoleCount:
    """Returns the driver's memory when another driver is to continue although this one has not failed.

    Rule: its pods are replaced, which the restart history shows and no limit counts.
    """
    news = tuple(
        RestartRecord(
            role=str(Role.DRIVER),
            pod=pod.name,
            reason=Reason.RESTARTING,
            message=message,
            node=pod.node,
            counted=False,
            time=stamp(now),
        )
        for pod in pods
    )
    return replace(released(memory, pods), restarts=memory.restarts + len(news), news=news)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a job shows that concerns all of its roles.

    `gone` are names that no pod of the job has any more, or only one that has ended.
    """

    job: JobRef
    step: int
    now: datetime
    lost: Lost
    gone: Collection[str] = ()


def count(
    look: Look,
    role: Role,
    memory: RoleCount,
    pods: Sequence[PodView],
    wanted: Sequence[Place],
    *,
    draining: Collection[Place] = (),
    failed_inside: str | None = None,
    disruptions: Collection[datetime] = (),
) -> RoleCount:
    """Returns the memory after a look at the role's pods.

    `wanted` are the places that should have a pod, `draining` further ones whose pod is being drained. `failed_inside` says how
    a process failed whose container outlived it. `disruptions` are times: near one of them (`explained`) neither the
    failure of a container nor an incident counts.

    Rules:
    * a pod whose record is missing or older is new unless it was given up (`is_past`), and begins with no restarts counted;
    * failures are restarts of the role's own containers, losses of pods, and starts of the driver after a failure that its container
      outlived. `losses` says which losses count; the end of a driver that got no answer doesn't;
    * a record whose pod is not there is a loss too, since the pod was deleted between two looks. It counts unless `lost.gone` says
      otherwise;
    * a container that is restarted in a pod that is being drained is no failure, even if the pod stays after all;
    * what counts is incidents, which are failures close together (`Incidents`). Their times are the API server's where it has any
      (`pod_times`), so it hardly matters when the operator looks, or which operator;
    * incidents are those since the last new step: when `step` is above `restart_step` the count starts over. A step that
      is repeated after a rollback is not new, so a job that always fails at the same place reaches its limit.
    """
    anew, now = memory.restart_step is None or look.step > memory.restart_step, look.now
    if disruptions:
        memory = replace(memory, incidents=memory.incidents.without_those_near(disruptions))
    newest = {pod.place: pod for pod in pods}
    records: dict[Place, PodRecord] = {}
    failures: list[Failure] = []
    for place in (*wanted, *draining):
        pod = newest.get(place)
        loss = look.lost.pods.get(pod.uid) if pod else None
        record = _current(memory, place, pod, anew=anew, lost=loss is not None)
        if record is None:
            continue
        pod = pod if pod and pod.attempt == record.attempt else None
        if pod and pod.node:
            update = {"node": pod.node, "was_ready": record.was_ready or pod.ready}
            if (record.node, record.was_ready) != tuple(update.values()):
                record = record.model_copy(update=update)
        if place in draining:
            record = record.model_copy(update={"restarts": pod.restarts if pod else record.restarts})
        elif record.lost_time is None and (failed_inside or loss or pod is None or pod.restarts > record.restarts):
            name = look.job.pod(role, place, record.attempt)
            if pod is None:
                loss = look.lost.gone.get(name)
            new_failures = [*_restarts(record, name, pod, now), *_losses(record, name, pod, loss, now)]
            record = _after(record, new_failures, now, anew=anew)
            if failed_inside:
                new_failures.insert(0, Failure(place, str(role), name, Reason.CONTAINER_EXITED, failed_inside, now))
            failures += new_failures
        if look.gone and look.job.pod(role, place, record.attempt) in look.gone:
            record = record.model_copy(update={"gone": True})
        records[place] = record
    memory = replace(released(memory, pods, keep=frozenset((*wanted, *draining))), records=records, news=())
    if not failures:
        return memory
    failures = [
        replace(failure, counted=failure.counted and (failure.what == POD or not explained(failure.time, disruptions)))
        for failure in sorted(failures, key=lambda failure: failure.time)
    ]
    # Restarts about which nothing is known are equal, and reported once.
    news = tuple(_restart_record(role, records[failure.place], failure, now) for failure in dict.fromkeys(failures))
    return _with(replace(memory, news=news), failures, look.step, anew=anew)


def _with(memory: RoleCount, failures: Sequence[Failure], step: int, *, anew: bool) -> RoleCount:
    """Returns the memory after these failures, sorted by time; those that count are added to their incidents."""
    incidents, records = Incidents() if anew else memory.incidents, dict(memory.records)
    for failure in failures:
        if failure.counted:
            record = records[failure.place]
            last, same = moment(record.incident) if record.incident else None, record.failed == failure.what
            incidents, begun = incidents.with_failure(failure.time, last, same=same)
            records[failure.place] = record.model_copy(update={"incident": stamp(begun), "failed": failure.what})
    return replace(
        memory,
        records=records,
        restarts=memory.restarts + len(failures),
        incidents=Incidents(incidents.times[-INCIDENTS:]),
        restart_step=max(step, memory.restart_step or 0),
    )


def _restarts(record: PodRecord, name: str, pod: PodView | None, now: datetime) -> Iterator[Failure]:
    """Yields container restarts that are not counted yet.

    Only the last of each container is known. Those within `INCIDENT` of the newest are yielded, and those so long after the record's last
    incident that they can't have been counted; in place of any others, the newest.
    """
    more = pod.restarts - record.restarts if pod else 0
    if pod is None or more <= 0:
        return
    ends = terminations(pod.own_statuses)
    if not ends:
        ends = [Termination("container", Reason.CONTAINER_EXITED, "a container was restarted")]
    newest = _time_of(ends[0], now)
    counted = moment(record.incident) + INCIDENT if record.incident else None
    times = [(end, _time_of(end, now)) for end in ends]
    new_ends = [end for end, time in times if newest - time <= INCIDENT or counted is None or time > counted][:more]
    for end in [*new_ends, *[ends[0]] * (more - len(new_ends))]:
        yield Failure(place_of(record), end.container, name, end.reason, end.text, _time_of(end, now), end.counted)


def _losses(record: PodRecord, name: str, pod: PodView | None, loss: Loss | None, now: datetime) -> Iterator[Failure]:
    if pod is None and loss is None:
        loss = Loss(Reason.POD_LOST, f"it vanished from node {record.node}" if record.node else "it vanished")
    if loss:
        time = min(loss.time or now, now)
        yield Failure(place_of(record), POD, name, loss.reason, loss.message, time, loss.counted)


def _after(record: PodRecord, failures: Sequence[Failure], now: datetime, *, anew: bool) -> PodRecord:
    """Returns the record after counting these failures."""
    if not failures:
        return record
    lost = any(failure.what == POD for failure in failures)
    record = record.model_copy(update={"restarts": record.restarts + len(failures) - lost})
    losses = (0 if anew else record.losses) + 1
    return record.model_copy(update={"losses": losses, "lost_time": stamp(now)}) if lost else record


def _current(memory: RoleCount, place: Place, newest: PodView | None, *, anew: bool, lost: bool) -> PodRecord | None:
    """Returns the record to continue from; None if no pod came, or it was released.

    It is a new one if the newest pod is new, else the remembered one, no longer lost if its pod is there and well after all.
    """
    old = memory.records.get(place)
    if newest and newest.attempt >= (old.attempt + 1 if old else memory.next_attempt):
        if old is None:
            return PodRecord(pool=place.pool or None, index=place.index, attempt=newest.attempt)
        return PodRecord(
            pool=place.pool or None,
            index=place.index,
            attempt=newest.attempt,
            losses=0 if anew else old.losses,
            incident=old.incident,
            failed=old.failed,
        )
    if old and old.lost_time and newest and newest.attempt == old.attempt and not lost:
        # Mistaken for lost, since the snapshot had missed it; or it was stuck and no longer is.
        return old.model_copy(update={"lost_time": None, "gone": None})
    return old


def _time_of(end: Termination, now: datetime) -> datetime:
    """Returns when a container ended; `now` if that isn't known."""
    return moment(end.time) if end.time else now


def _restart_record(role: Role, record: PodRecord, failure: Failure, now: datetime) -> RestartRecord:
    return RestartRecord(
        role=str(role),
        pod=failure.pod,
        reason=failure.reason,
        message=failure.message[:FAILURE_LENGTH],
        node=record.node,
        counted=failure.counted,
        time=stamp(now),
    )
