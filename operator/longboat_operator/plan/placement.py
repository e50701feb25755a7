"""Decides how long a job waits for room for its pods, and when it gives back what it has. Pure.

A job needs its minimum of pods together. One that holds nodes for part of it, and waits for the rest, keeps them from others, which may
do the same. So it gives them back after a while and tries again later. It doesn't fail: nothing is wrong with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType
from longboat_crds.status import Placement
from longboat_operator.model import digest
from longboat_operator.plan.creation import Vacancy
from longboat_operator.plan.deadline import LATE_SECONDS, StartClock, has_trained, seconds_left, start_clock
from longboat_operator.plan.losses import loss_of
from longboat_operator.plan.places import Places
from longboat_operator.plan.records import Memories, is_past, released
from longboat_operator.pods.names import Place
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import find
from longboat_operator.reading.times import seconds_until, stamp
from longboat_operator.reading.view import JobView, PodView
from longboat_operator.reading.waiting import rank

# The wait after the first release, which doubles with each further one, up to the longest. The uid adds up to as much again, so that jobs
# that released together don't come back together. It is longer than a minute, after which a quota's refusal is tried again: what one job
# gives back, one that stayed gets.
FIRST_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 960.0


class Stage(Enum):
    """Says whether a job that is neither suspended nor finished should have pods."""

    NONE = auto()
    """It should: nothing is released."""
    RELEASING = auto()
    """Its pods are being deleted because there is no room for the minimum."""
    RELEASED = auto()
    """They are gone, and it waits to try again."""


@dataclass(frozen=True, slots=True)
class Minimum:
    """Counts the pods without which rounds can't run: how many are needed, have a node, and are ready."""

    needed: int
    placed: int
    ready: int

    @property
    def is_placed(self) -> bool:
        """Whether all of it has nodes."""
        return self.placed >= self.needed

    @property
    def is_ready(self) -> bool:
        """Whether all of it is ready."""
        return self.ready >= self.needed


@dataclass(frozen=True, slots=True)
class Waiting:
    """Holds what a look has found about a job's room: its `stage`, what to publish, and when to look again.

    `gives_up` is whether a job that ran is no longer restarting, but waits for room like one that was never started.
    """

    stage: Stage
    placement: Placement | None
    minimum: Minimum
    gives_up: bool = False
    wait: float | None = None


def minimum_of(view: JobView, places: Places, lost: Collection[str]) -> Minimum:
    """Counts the minimum of a job whose pods are wanted at `places`; pods in `lost` (by uid) can't serve any more.

    Rule: the driver, all trainer pods, min(replicas, max(1, minReplicas)) rollout pods, whichever they are, and one pod of each reward
    and environment pool. A pod that is lost or being deleted doesn't count. Rollout pods that the driver has asked to do without aren't
    needed.
    """
    needed = placed = ready = 0
    for role, least, pool in _pools(view, places):
        newest = {pod.place: pod for pod in view.pods[role]}
        serving = [pod for place in pool if (pod := newest.get(place)) and pod.uid not in lost]
        needed += least
        placed += min(least, sum(pod.node is not None for pod in serving))
        ready += min(least, sum(pod.ready for pod in serving))
    return Minimum(needed, placed, ready)


def minimum_first(view: JobView, places: Places, vacant: Sequence[Vacancy]) -> list[Vacancy]:
    """Returns the places without a pod in the order in which they get one: those that the minimum lacks first.

    Otherwise pods that rounds can do without could use up the room or the quota that the minimum needs, each time that the job tries again.
    """
    first: set[tuple[Role, Place]] = set()
    empty = {(vacancy.role, vacancy.place) for vacancy in vacant}
    for role, least, pool in _pools(view, places) if empty else ():
        missing = [(role, place) for place in pool if (role, place) in empty]
        first.update(missing[: max(0, least - (len(pool) - len(missing)))])
    return sorted(vacant, key=lambda vacancy: (vacancy.role, vacancy.place) not in first)


def _pools(view: JobView, places: Places) -> Iterator[tuple[Role, int, Sequence[Place]]]:
    """Yields the places of each role, those of each pool if it has pools, and how many of them belong to the minimum."""
    for role in ROLES:
        pools: dict[str, list[Place]] = {}
        for place in places[role]:
            pools.setdefault(place.pool, []).append(place)
        for pool in pools.values():
            least = len(pool)
            if role is Role.ROLLOUT:
                least = min(least, max(1, view.spec.rollout.min_replicas or 0))
            elif not ROLES[role].every_pod_needed:
                least = 1
            yield role, least, pool


def waiting_of(view: JobView, memories: Memories, places: Places, lost: Collection[str], now: datetime) -> Waiting:
    """Judges how a job that is neither suspended nor finished stands with its room.

    `memories` are the roles' as published; pods in `lost` (by uid) can't serve any more.

    Rules:
    * a release, once published, is carried through: first all pods go (`pods_to_release`), then the job waits (`wait_seconds`);
    * the wait ends early when a scheduling gate of a pod that was kept is lifted: the queue that set it has let the job go;
    * otherwise the job is released when its time is over (`_limit`). If none of its pods has a node there is nothing to give
      back: a job that ran then just waits like one that was never started.
    """
    minimum = minimum_of(view, places, lost)
    old = view.status.placement
    if old and view.releasing:
        if pods_to_release(view, memories):
            return Waiting(Stage.RELEASING, old, minimum)
        wait = wait_seconds(view.job.uid, old.releases or 1)
        after = {
            "placed": 0,
            "since": None,
            "priority": None,
            "release_time": None,
            "retry_time": stamp(now + timedelta(seconds=wait)),
        }
        return Waiting(Stage.RELEASED, old.model_copy(update=after), minimum, wait=wait)
    if old and old.retry_time is not None:
        remaining = seconds_until(old.retry_time, 0.0, now)
        admitted = any(not pod.gates and pod.uid not in lost for pod in _current(view, memories))
        if remaining > 0 and not admitted:
            return Waiting(Stage.RELEASED, old, minimum, wait=remaining)
    return _waiting(view, minimum, now)


def _waiting(view: JobView, minimum: Minimum, now: datetime) -> Waiting:
    """Judges a job of which nothing is released."""
    old, clock = view.status.placement, start_clock(view, minimum.is_placed, minimum.is_ready, now)
    trained = has_trained(view)
    if minimum.is_placed and (trained or clock == StartClock()):
        return Waiting(Stage.NONE, None, minimum)
    since = _since(view, minimum, now)
    half_placed = 0 < minimum.placed < minimum.needed
    priority = max((pod.priority for pod in view.all_pods), default=0)
    new = Placement(
        minimum=minimum.needed,
        placed=minimum.placed,
        since=since,
        priority=priority if half_placed else None,
        start_seconds=clock.seconds or None,
        start_since=clock.since,
        releases=old.releases if old and not minimum.is_placed else None,
    )
    if since is None:
        return Waiting(Stage.NONE, new, minimum, wait=seconds_left(view, new, now))
    limit, field = _limit(view, minimum, priority)
    remaining = None if limit is None else seconds_until(since, limit, now)
    if remaining is None or remaining > 0:
        return Waiting(Stage.NONE, new, minimum, wait=remaining)
    if not minimum.placed and trained:
        return Waiting(Stage.NONE, new, minimum, gives_up=True)
    released_now = {
        "release_time": stamp(now),
        "releases": (new.releases or 0) + 1,
        "cause": _cause(view, minimum, limit, field),
    }
    return Waiting(Stage.RELEASING, new.model_copy(update=released_now), minimum)


def _since(view: JobView, minimum: Minimum, now: datetime) -> str | None:
    """Returns since when the job waits for the rest of its minimum; None if it waits for nothing, or has no pods.

    Rule: a starting job waits since the last pod of its minimum got a node, or since it first had pods. A running one waits since it was
    first found to lack a pod. The time starts over if no operator looked when it was up: none could replace a pod either.
    """
    if minimum.is_placed or not view.all_pods:
        return None
    old, policy, trained = view.status.placement, view.spec.failure_policy, has_trained(view)
    if old is None or old.since is None or (minimum.placed > old.placed and not trained):
        return stamp(now)
    longest = policy.recovery_timeout_seconds if trained else 2 * policy.placement_timeout_seconds
    was_away = (minimum.placed or trained) and seconds_until(old.since, longest, now) < -LATE_SECONDS
    return stamp(now) if was_away else old.since


def _limit(view: JobView, minimum: Minimum, priority: int) -> tuple[float | None, str]:
    """Returns how many seconds the job may wait with what it has, None for ever, and the field of failurePolicy that says so.

    Rule:
    * a running job has `recoveryTimeoutSeconds`;
    * one that starts, with nodes for some of its minimum, has `placementTimeoutSeconds`. The one that ranks first of all those that wait
      like this has twice as long: what the others give back may be all that it needs;
    * one whose pods have no nodes is in nobody's way, and waits as long as it takes: an autoscaler may make room for them, and a queue
      keeps their turn. If they use up a quota that refuses another job's pod, it has `placementTimeoutSeconds`.
    """
    policy, contention = view.spec.failure_policy, view.observed.contention
    if has_trained(view):
        return float(policy.recovery_timeout_seconds), "recoveryTimeoutSeconds"
    field = "placementTimeoutSeconds"
    if not minimum.placed:
        return float(policy.placement_timeout_seconds) if contention.quota_refuses else None, field
    job, first = view.observed.job, contention.first_half_placed
    assert job is not None
    ranks_first = first is None or rank(job, priority) < first
    return float(policy.placement_timeout_seconds * (2 if ranks_first else 1)), field


def _cause(view: JobView, minimum: Minimum, limit: float | None, field: str) -> str:
    """Says why the pods are released."""
    if minimum.placed:
        text = f"only {minimum.placed} of {minimum.needed} pods of the minimum had nodes for {limit:g} s"
    else:
        text = f"none of the pods had a node for {limit:g} s, and they used up a quota that refuses another job's pods"
    scheduled = find(view.status.conditions, ConditionType.SCHEDULED)
    missing = f": {scheduled.message}" if scheduled and scheduled.status == "False" and scheduled.message else ""
    return f"{text} (failurePolicy.{field}){missing}"[:2048]


def pods_to_release(view: JobView, memories: Memories) -> list[PodView]:
    """Returns the pods of a released job that are there and have to go.

    Rule: all but those that scheduling gates keep from being scheduled, unless a quota refuses another job's pod.
    """
    gated = _gated_pods(view, memories)
    return [pod for pod in view.all_pods if pod.uid not in gated]


def pods_to_delete_now(view: JobView, memories: Memories) -> list[PodView]:
    """Returns those of `pods_to_release` that may be deleted now.

    Rule: the pods of a driver that has reported go first, since it saves the last step as it ends, for which it needs all trainer pods.
    """
    pods = pods_to_release(view, memories)
    drivers = {pod.uid for pod in view.pods[Role.DRIVER]} if view.training else set()
    return [pod for pod in pods if pod.uid in drivers] or pods


def released_memories(view: JobView, memories: Memories) -> Memories:
    """Returns the memories of a job whose pods are released, which is no loss of theirs.

    The places of pods that are kept stay, and those of pods that no watch shows, which are looked up until they are gone.
    """
    gated = _gated_pods(view, memories)
    return {
        role: released(
            memories[role],
            view.pods[role],
            {*view.unwatched_places(role), *(pod.place for pod in view.pods[role] if pod.uid in gated)},
        )
        for role in memories
    }


def _gated_pods(view: JobView, memories: Memories) -> frozenset[str]:
    """Returns the uids of the pods that a release leaves alone."""
    if view.observed.contention.quota_refuses:
        return frozenset()
    return frozenset(pod.uid for pod in _current(view, memories) if pod.gates and loss_of(pod) is None)


def _current(view: JobView, memories: Memories) -> Iterator[PodView]:
    """Yields the pods that weren't given up."""
    return (pod for role in ROLES for pod in view.pods[role] if not is_past(memories[role], pod))


def wait_seconds(uid: str, releases: int) -> float:
    """Returns how long a job waits after so many releases in a row, from 1.

    Rule: `FIRST_WAIT_SECONDS` after the first, doubled with each further one up to `LONGEST_WAIT_SECONDS`, and up to as much again by the
    job's uid.
    """
    doubled = min(FIRST_WAIT_SECONDS * 2.0 ** min(releases - 1, 32), LONGEST_WAIT_SECONDS)
    share = int(digest({"uid": uid, "releases": releases}), 16) / 16**16
    return doubled * (1.0 + share)
