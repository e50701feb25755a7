"""Decides what a job is granted: rollout and environment pods, which of them it must give back, and CPUs of reward pods. Pure.

A capacity's plan divides it, and the job's plan (`places`, `leaving`) uses what was granted. A capacity has one job, so only that job's
spec bounds its grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from longboat_crds.base import Role
from longboat_crds.status import EnvironmentGrant, Grant, LeavingPod, PodsDemand, PodsGrant, PoolGrant, RolloutGrant
from longboat_operator.model import Observed, Plan, PublishGrant
from longboat_operator.plan.losses import loss_of
from longboat_operator.plan.records import RoleCount, is_past, remembered
from longboat_operator.plan.reward_shares import reward_grant_of
from longboat_operator.reading.status import (
    environment_demand,
    environment_grant,
    reward_demand,
    reward_grant,
    rollout_demand,
    rollout_grant,
)
from longboat_operator.reading.times import moment, stamp
from longboat_operator.reading.view import CapacityView, PodView, SpecUnreadable, read_capacity

# How long a driver has to drain a pod. It moves what runs there within seconds, but first ends a publication of weights or
# a reshape that is under way, which takes minutes with large models; longer would keep devices from others for one that
# doesn't respond.
LEAVE_SECONDS = 300


def plan_capacity(observed: Observed, now: datetime) -> Plan:
    """Publishes the grant if it is not the published one. A job whose spec can't be read keeps what it has."""
    job = observed.job
    if job is None or job["metadata"].get("deletionTimestamp"):
        return Plan()
    try:
        view = read_capacity(observed, job)
    except SpecUnreadable:
        return Plan()
    allocation = view.status.allocation
    new = grant_of(view, now)
    if new == (allocation.grant if allocation else None):
        return Plan()
    return Plan((PublishGrant(new.to_json() if new else None),))


def grant_of(view: CapacityView, now: datetime) -> Grant | None:
    """Returns all that the job gets: None if it has ended, is to stay suspended, or waits for room without pods.

    While its pods are being released, for either cause, it keeps what it had.
    """
    if view.finished or (view.suspended and view.suspend) or view.released:
        return None
    if not view.suspended and (view.suspend or view.status.suspend_time or view.releasing):
        return view.status.allocation.grant if view.status.allocation else None
    reward = None
    if view.reward_cpu is not None:
        reward = reward_grant_of(
            view.reward_cpu, view.reward_pools, reward_grant(view.status), reward_demand(view.status)
        )
    environment = environment_grant_of(view, now) if view.environment_pools else None
    return Grant(rollout=rollout_grant_of(view, now), reward=reward, environment=environment)


def rollout_grant_of(view: CapacityView, now: datetime) -> RolloutGrant:
    """Decides how many rollout pods the job gets, and which it has to give back.

    Rule:
    * `replicas` are what the demand of the current incarnation asks for, or spec.rollout.replicas while that has asked for
      nothing; at least spec.rollout.minReplicas and at most spec.rollout.replicas. A demand of another incarnation is ignored;
    * `answers` is the number of the demand that counted, None without one;
    * `leaving` are the pods to give back (`pods_to_leave`), None if there are none.
    """
    demand, old = rollout_demand(view.status), rollout_grant(view.status)
    replicas = _within(demand, view.min_replicas, view.replicas)
    leaving = pods_to_leave(view, Role.ROLLOUT, "", view.pods, old, demand, replicas, now)
    return RolloutGrant(answers=demand.number if demand else None, replicas=replicas, leaving=leaving or None)


def environment_grant_of(view: CapacityView, now: datetime) -> EnvironmentGrant:
    """Decides how many pods each environment pool gets, and which it has to give back.

    Rule: as for rollout pods (`rollout_grant_of`), within replicas and minReplicas of the pool, which keeps at least one pod. Until a new
    incarnation asks, each pool has what it was granted: it would ask for the same, so pods would come only to leave again.
    """
    demand, old = environment_demand(view.status), environment_grant(view.status)
    demands = {pool.name: pool for pool in (demand.pools if demand else None) or ()}
    granted = {pool.name: pool for pool in (old.pools if old else None) or ()}
    pools = []
    for pool in view.environment_pools:
        wanted, has = demands.get(pool.name), granted.get(pool.name)
        replicas = _within(wanted if demand else has, pool.min_replicas or 1, pool.replicas)
        pods = [pod for pod in view.environment_pods if pod.place.pool == pool.name]
        leaving = pods_to_leave(view, Role.ENVIRONMENT, pool.name, pods, has, wanted, replicas, now)
        pools.append(PoolGrant(name=pool.name, replicas=replicas, leaving=leaving or None))
    return EnvironmentGrant(answers=demand.number if demand else None, pools=pools)


def _within(wanted: PodsDemand | PodsGrant | None, least: int, most: int) -> int:
    return max(min(wanted.replicas if wanted else most, most), least)


def pods_to_leave(
    view: CapacityView,
    role: Role,
    pool: str,
    present: Sequence[PodView],
    old: PodsGrant | None,
    demand: PodsDemand | None,
    replicas: int,
    now: datetime,
) -> list[LeavingPod]:
    """Returns the pods to give back, in the order in which they were named. `present` are the pods of the role and, if it has any, the pool.

    Rule:
    * unless it is taken back, a pod stays named, with its first deadline, until it is gone and the job's plan has released its record:
      its end is no loss;
    * if more pods than `replicas` serve, or may yet, the surplus leaves: those of `giveFirst` in its order, then those that
      aren't ready, then the highest index. A newly named one has `LEAVE_SECONDS`;
    * if there is room again, pods are taken back in the opposite order, unless the driver has listed them as drained, they can't serve
      any more, or their deadline has passed.
    """
    memory = remembered(getattr(view.status.roles, role) if view.status.roles else None)
    pods = {pod.name: pod for pod in present}
    recorded = {
        view.job.pod(role, place, record.attempt) for place, record in memory.records.items() if place.pool == pool
    }
    named = {leaving.pod: leaving for leaving in (old.leaving if old else None) or ()}
    named = {name: leaving for name, leaving in named.items() if name in pods or name in recorded}
    given_first = list(demand.give_first or ()) if demand else []
    staying = [pod for pod in present if pod.name not in named and _may_serve(pod, memory)]
    surplus = len(staying) - replicas
    if surplus > 0:
        deadline = stamp(now + timedelta(seconds=LEAVE_SECONDS))
        chosen = _in_order(staying, given_first)[:surplus]
        named |= {pod.name: LeavingPod(pod=pod.name, deadline=deadline) for pod in chosen}
    elif surplus < 0:
        drained = set(demand.drained or ()) if demand else set()
        retainable = [
            pods[name]
            for name, leaving in named.items()
            if name in pods
            and name not in drained
            and moment(leaving.deadline) > now
            and _may_serve(pods[name], memory)
        ]
        for pod in _in_order(retainable, given_first)[surplus:]:
            del named[pod.name]
    return list(named.values())


def _may_serve(pod: PodView, memory: RoleCount) -> bool:
    return loss_of(pod) is None and not is_past(memory, pod)


def _in_order(pods: Sequence[PodView], given_first: Sequence[str]) -> list[PodView]:
    """Returns the pods in the order in which they leave."""
    turn = {name: number for number, name in enumerate(given_first)}
    return sorted(pods, key=lambda pod: (turn.get(pod.name, len(turn)), pod.ready, -pod.place.index, -pod.attempt))
