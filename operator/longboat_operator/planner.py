"""Makes a plan from a snapshot: the snapshot is read, rules decide, and the status reports it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase, RLJobStatus
from longboat_operator.model import (
    Action,
    CapacityKey,
    DeleteObject,
    Object,
    Observed,
    Plan,
    PublishStatus,
    ResizePod,
    Target,
    target_of,
)
from longboat_operator.plan import deadline
from longboat_operator.plan.capacity import plan_capacity
from longboat_operator.plan.creation import Creation, creation_of, finding_of_rejection, pods_to_create, vacancies
from longboat_operator.plan.drains import Drain, drain_of, opened
from longboat_operator.plan.failures import ended_before_last_step, over_the_limit, said_by_driver
from longboat_operator.plan.incarnations import failure_before
from longboat_operator.plan.leaving import Departure, Leaving, leaving_of
from longboat_operator.plan.losses import Lost, disruptions, lost_pods
from longboat_operator.plan.placement import (
    Stage,
    Waiting,
    minimum_first,
    pods_to_delete_now,
    released_memories,
    waiting_of,
)
from longboat_operator.plan.places import Places, places_of
from longboat_operator.plan.pod_problems import ForeignContainers, foreign_containers
from longboat_operator.plan.records import (
    Look,
    Memories,
    RoleCount,
    all_released,
    count,
    dismissed,
    published_records,
    released,
    remembered,
)
from longboat_operator.plan.removal import Removal, missing_pods, pods_to_remove, removal_of, token_removal
from longboat_operator.plan.reward_cpus import reward_cpus_of
from longboat_operator.plan.starts import HeldUp, held_up
from longboat_operator.plan.suspension import Suspension, grace_left, suspension_of
from longboat_operator.plan.templates import Template, template_of
from longboat_operator.pods.roles import ROLES, SCALED_ROLES
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView, SpecUnreadable, read, read_for_release
from longboat_operator.rejections import OF_AN_EARLIER_JOB, UNANSWERED
from longboat_operator.status.conditions import Facts
from longboat_operator.status.events import events_of
from longboat_operator.status.publication import (
    deleted_status,
    final_status,
    operator_part,
    status_of,
    with_findings,
    with_kept_pods,
)
from longboat_operator.status.roles import NOWHERE, summary, survey

# Finalizers with which the garbage collector deletes a job's children before the job, or lets them live.
_GARBAGE_COLLECTORS_FINALIZERS = frozenset({"foregroundDeletion", "orphan"})


def plan(observed: Observed, now: datetime) -> Plan:
    """Returns what to do about a job or a capacity, as data; empty if there is nothing to do. `now` is an aware time.

    Order: what is missing is created, what is superfluous is deleted, then the status is published, pods are resized and events are sent.
    A pod is deleted because it is lost only by a plan that finds the loss recorded in the status, so a plan may be cut short anywhere and
    be made again.
    """
    if isinstance(observed.key, CapacityKey):
        return plan_capacity(observed, now)
    job = observed.job
    if job is None:
        return Plan()
    if job["metadata"].get("deletionTimestamp"):
        return _deleted(observed, job, now)
    try:
        view = read(observed, job)
    except SpecUnreadable as error:
        return _unreadable(observed, job, str(error), now)
    if view.finished:
        return _finished(view, now)
    suspension = suspension_of(view, now)
    memories = {role: remembered(view.published(role)) for role in ROLES}
    goes_on = suspension is Suspension.NONE and not said_by_driver(view)
    if missing := _unknown(view, memories, goes_on=goes_on):
        return _before_look_ups(view, memories, missing, now)  # nothing may take a pod's place before its fate is known
    lost = lost_pods(view, now)
    leaving = leaving_of(view, memories, lost.pods, now)
    places = places_of(view, memories, lost.pods, leaving)
    waiting = waiting_of(view, memories, places, lost.pods, now) if suspension is Suspension.NONE else None
    runs = waiting is not None and waiting.stage is Stage.NONE
    if waiting and not runs:
        counts = released_memories(view, memories)
    else:
        counts = _counts(view, memories, suspension, now, lost, places, leaving)
    vacant = list(vacancies(view, memories, places, counts, now)) if runs and view.grant else []
    vacant = minimum_first(view, places, vacant)
    template = template_of(view) if runs else None
    cpus = reward_cpus_of(view, places[Role.REWARD], pods_to_create(view, vacant), now, runs=runs)
    creation = creation_of(view, template, vacant, cpus, now) if template else Creation()
    starts = held_up(view, now) if runs else HeldUp()
    roles = survey(view, NOWHERE if suspension is Suspension.SUSPENDED else places, lost.pods)
    removal = (
        _removal(view, memories, places, lost, waiting, now) if waiting else _removal_to_suspend(view, suspension, now)
    )
    foreign = foreign_containers(view, now) if runs else ForeignContainers()
    runtime = template.runtime if isinstance(template, Template) else None
    drain = drain_of(view, runtime, lost.pods.keys(), now) if runs else Drain()
    refused = _refused(view, (*removal.actions, *drain.actions), cpus.resizes)
    facts = Facts(
        suspension,
        roles,
        counts,
        creation,
        held_up=starts.problem,
        reward_cpu=cpus.status,
        waiting=waiting,
        foreign=foreign.problem,
        refused=refused,
        drain=drain.status,
    )
    if end := _end(view, facts, now):
        return _published(view.status, final_status(view, end, counts, now), counts)
    status = status_of(view, facts, now)
    waits = [
        creation.wait,
        drain.wait,
        removal.wait,
        lost.wait,
        leaving.wait,
        starts.wait,
        foreign.wait,
        cpus.wait,
        *_timers(view, facts, now),
    ]
    tokens = token_removal(view, pods_end=suspension is Suspension.SUSPENDED)
    actions = (*drain.actions, *creation.actions, *removal.actions, *tokens)
    made = _published(view.status, status, counts, actions, _soonest(waits), leaving.departures, cpus.resizes)
    return replace(made, look_up=(*creation.look_up, *starts.look_up))


def _counts(
    view: JobView,
    published: Memories,
    suspension: Suspension,
    now: datetime,
    lost: Lost,
    places: Places,
    leaving: Leaving,
) -> Memories:
    """Returns every role's memory after this look. Pods removed on purpose are not losses."""
    memories = {
        **published,
        **{role: _without_gone(view, role, published[role], leaving) for role in SCALED_ROLES},
    }
    if suspension in {Suspension.NONE, Suspension.SUSPENDING}:
        allocation = view.status.allocation
        inside = failure_before(allocation.incarnation if allocation else None, view.status.demand)
        # A driver that loses a pod it works with can't continue: it restarts, and that is no failure of its own.
        look, excuses = Look(view.job, view.step, now, lost, view.gone), disruptions(view, lost)
        counts = {
            role: count(
                look,
                role,
                memories[role],
                view.pods[role],
                places[role],
                draining=leaving.draining.get(role, ()),
                failed_inside=inside if role is Role.DRIVER else None,
                disruptions=excuses if role is Role.DRIVER else (),
            )
            for role in ROLES
        }
        if suspension is Suspension.NONE and ended_before_last_step(view):
            text = f"rounds.steps was raised to {view.spec.rounds.steps} when {view.step} steps were trained"
            counts[Role.DRIVER] = dismissed(memories[Role.DRIVER], view.pods[Role.DRIVER], text, now)
        return _with_unwatched(view, published, counts)
    return all_released(view, memories)


def _before_look_ups(view: JobView, memories: Memories, missing: tuple[Target, ...], now: datetime) -> Plan:
    """Looks up what has to be known first, and reports the first look-up that the API server refuses or long hasn't answered."""
    answers = [(kind, view.observed.rejections[name]) for kind, name in missing if name in view.observed.rejections]
    if not answers:
        return Plan(look_up=missing)
    status = with_findings(view.status, [finding_of_rejection(*answers[0])], view.generation, now)
    return replace(_published(view.status, status, memories), look_up=missing)


def _refused(view: JobView, actions: Sequence[Action], resizes: Sequence[ResizePod]) -> Finding | None:
    """Returns the first of these requests that the API server refuses or long hasn't answered; None if there is none.

    Left out are refused resizes, which `status.rewardCpu` reports, and objects of an earlier job of this name, which soon go by themselves.
    """
    rejections = view.observed.rejections
    answers = [(kind, rejections[name]) for kind, name in map(target_of, actions) if name in rejections]
    answers = [answer for answer in answers if OF_AN_EARLIER_JOB not in answer[1]]
    answers += [("Pod", answer) for resize in resizes if UNANSWERED in (answer := rejections.get(resize.name, ""))]
    return finding_of_rejection(*answers[0]) if answers else None


def _unknown(view: JobView, memories: Memories, *, goes_on: bool = False) -> tuple[Target, ...]:
    """Returns the pods to look up first. A job that ends or is suspended, unlike one that `goes_on`, doesn't wait for refused look-ups."""
    missing = missing_pods(view, memories)
    refused = all(name in view.observed.rejections for _, name in missing)
    return missing if goes_on or not refused else ()


def _with_unwatched(view: JobView, published: Memories, counts: Memories) -> Memories:
    """Returns the counts with the published records of pods that the watch doesn't show: their places aren't free until they are gone."""
    unwatched = all_released(view, published)
    return {
        role: replace(memory, records={**unwatched[role].records, **memory.records}) for role, memory in counts.items()
    }


def _without_gone(view: JobView, role: Role, memory: RoleCount, leaving: Leaving) -> RoleCount:
    """Returns the memory without the pods that left, or may go now: another pod may take the place of one that is gone."""
    places = {
        place
        for place, record in memory.records.items()
        if place in leaving.draining.get(role, ()) or view.job.pod(role, place, record.attempt) not in leaving.named
    }
    return memory if len(places) == len(memory.records) else released(memory, (), keep=places)


def _end(view: JobView, facts: Facts, now: datetime) -> Finding | None:
    """Returns how the job has ended, if it has: the driver's word first, then the operator's limits."""
    if end := said_by_driver(view):
        return end
    if facts.waiting is None or facts.waiting.stage is not Stage.NONE:
        return None
    if end := over_the_limit(view, facts.counts):
        return end
    ready = find(view.status.conditions, ConditionType.ROLES_READY)
    return deadline.missed(view, facts.waiting.placement, now, ready.message if ready else summary(facts.roles))


def _removal(view: JobView, memories: Memories, places: Places, lost: Lost, waiting: Waiting, now: datetime) -> Removal:
    if waiting.stage is Stage.NONE:
        return removal_of(pods_to_remove(view, memories, lost.pods, places), now)
    # A release is published before its first pod goes, so that none of them counts as lost.
    return removal_of(pods_to_delete_now(view, memories), now) if view.releasing or view.released else Removal()


def _removal_to_suspend(view: JobView, suspension: Suspension, now: datetime) -> Removal:
    is_published = view.suspended or view.status.suspend_time
    return removal_of(view.all_pods, now) if suspension is Suspension.RELEASING and is_published else Removal()


def _timers(view: JobView, facts: Facts, now: datetime) -> list[float | None]:
    """Returns the seconds until the driver's time to save a checkpoint is over, or those of `Waiting`; none if neither runs."""
    if facts.suspension is Suspension.SUSPENDING:
        return [grace_left(view, now)]
    return [facts.waiting.wait] if facts.waiting else []


def _deleted(observed: Observed, job: Object, now: datetime) -> Plan:
    """Plans for a job that is being deleted: leaves it to the garbage collector, unless somebody else's finalizer keeps it.

    Rule: then its pods go, as if the job were gone. With the finalizer `orphan` the user wants them to live; a drain may evict them, since
    nothing will be saved before it.
    """
    finalizers = [str(name) for name in job["metadata"].get("finalizers") or ()]
    foreign = [name for name in finalizers if name not in _GARBAGE_COLLECTORS_FINALIZERS]
    if "orphan" in finalizers:
        return Plan(opened(read_for_release(observed, job), None))
    if not foreign:
        return Plan()
    view = read_for_release(observed, job)
    if view.finished:
        return _finished(view, now, deleted=True)
    memories: Memories = {role: remembered(view.published(role)) for role in ROLES}
    if missing := _unknown(view, memories):
        return Plan(look_up=missing)
    removal = removal_of(view.all_pods, now)
    status = deleted_status(view, foreign, _refused(view, removal.actions, ()), memories, now)
    waits = [removal.wait, lost_pods(view, now).wait]
    return _published(view.status, status, memories, removal.actions, _soonest(waits))


def _finished(view: JobView, now: datetime, *, deleted: bool = False) -> Plan:
    """Plans for a job that has ended: its pods go at once, then the Secret of their token, and the job after `ttlSecondsAfterFinished`.

    Of the pods' records, only those of pods that the watch doesn't show were kept. They are looked up until they are gone.
    """
    memories = {role: remembered(view.published(role)) for role in ROLES}
    if missing := _unknown(view, memories):
        return Plan(look_up=missing)
    removal = removal_of(view.all_pods, now)
    tokens = token_removal(view, pods_end=True)
    actions: list[Action] = [*removal.actions, *tokens]
    waits = [removal.wait, lost_pods(view, now).wait]
    ttl, completed = view.spec.ttl_seconds_after_finished, view.status.completion_time
    if ttl is not None and completed is not None and not deleted:
        remaining = seconds_until(completed, ttl, now)
        waits.append(remaining if remaining > 0 else None)
        if remaining <= 0:
            actions.append(DeleteObject("RLJob", view.job.name, view.job.uid))
    status = with_kept_pods(view, now)
    if tokens:
        status = status.model_copy(update={"ray_token_secret": None})
    if status.roles and any(memory.records for memory in memories.values()):
        remaining_records = all_released(view, memories)
        roles = {role: view.published(role) for role in ROLES}
        changes = {
            str(role): shown.model_copy(update=published_records(remaining_records[role]))
            for role, shown in roles.items()
            if shown
        }
        status = status.model_copy(update={"roles": status.roles.model_copy(update=changes)})
    return _published(view.status, status, memories, tuple(actions), _soonest(waits))


def _unreadable(observed: Observed, job: Object, message: str, now: datetime) -> Plan:
    """Plans for a job whose spec this version can't read: creates no pods, and leaves running ones alone.

    Rule: a job that has ended, or is to be suspended, still releases its pods. The parts of the spec that can be read count.
    """
    view = read_for_release(observed, job)
    if view.finished:
        return _finished(view, now)
    memories: Memories = {role: remembered(view.published(role)) for role in ROLES}
    suspension, end = suspension_of(view, now), said_by_driver(view)
    releases = end is not None or suspension is not Suspension.NONE
    if releases and (missing := _unknown(view, memories)):
        return Plan(look_up=missing)
    if end:
        return _published(view.status, final_status(view, end, memories, now), memories)
    removal, waits = Removal(), list[float | None]()
    if suspension is Suspension.NONE:
        update = {
            "phase": view.status.phase or Phase.PENDING,
            "reason": str(Reason.SPEC_INVALID),
            "suspend_time": None,
            "drain": None,
        }
        status = view.status.model_copy(update={"observed_generation": view.generation, **update})
    else:
        places: Places = {role: tuple(dict.fromkeys(pod.place for pod in view.pods[role])) for role in ROLES}
        if suspension is not Suspension.SUSPENDING:
            places, memories = NOWHERE, all_released(view, memories)
        facts = Facts(suspension, survey(view, places, {}), memories, Creation(), reward_cpu=view.status.reward_cpu)
        status = status_of(view, facts, now)
        removal = _removal_to_suspend(view, suspension, now)
        waits = [removal.wait, lost_pods(view, now).wait, *_timers(view, facts, now)]
    finding = Finding(ConditionType.RUNTIME_RESOLVED, False, Reason.SPEC_INVALID, message)
    status = with_findings(status, [finding], view.generation, now)
    actions = (*opened(view, None), *removal.actions)  # a drain would wait for ever
    return _published(view.status, status, memories, actions, _soonest(waits))


def _published(
    old: RLJobStatus,
    new: RLJobStatus,
    counts: Memories,
    actions: tuple[Action, ...] = (),
    wait: float | None = None,
    departures: Sequence[Departure] = (),
    resizes: Sequence[ResizePod] = (),
) -> Plan:
    """Makes a plan of `actions`, then the status if the operator's part differs, `resizes`, and the events that report the difference."""
    events: tuple[Action, ...] = ()
    if old != new and (after := operator_part(new)) != operator_part(old):
        actions = (*actions, PublishStatus(after))
        events = tuple(events_of(old, new, counts, departures))
    return Plan((*actions, *resizes, *events), wait)


def _soonest(waits: list[float | None]) -> float | None:
    """Returns the shortest of the waits that aren't None, at least 0; None if all are."""
    return min((max(wait, 0.0) for wait in waits if wait is not None), default=None)
