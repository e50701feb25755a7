"""What a job is granted of its capacity: how many rollout pods, and which it takes back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.environments import EnvironmentPoolSpec
from longboat_crds.status import Grant, LeavingPod, RLJobStatus, RolloutGrant
from longboat_operator.model import Observed, Plan, PublishGrant
from longboat_operator.plan.capacity import LEAVE_SECONDS, environment_grant_of, grant_of, rollout_grant_of
from longboat_operator.planner import plan
from longboat_operator.pods.names import JobRef, Place
from longboat_operator.reading.status import rollout_demand, rollout_grant
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import CapacityView, PodView
from tests.operator_plan.simulated_cluster import KEY

JOB = JobRef("research", "sums", "uid")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = stamp(NOW + timedelta(seconds=LEAVE_SECONDS))


def name(index: int, attempt: int = 0) -> str:
    return f"sums-rollout-{index}-a{attempt}"


def pod(index: int, *, ready: bool = True, deleted: bool = False) -> PodView:
    metadata = {"name": name(index)} | ({"deletionTimestamp": stamp(NOW)} if deleted else {})
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return PodView(name(index), f"uid-{index}", Place("", index), 0, {"metadata": metadata, "status": status})


def demand(replicas: int, *, number: int = 1, incarnation: int = 1, **more: Any) -> dict[str, Any]:
    return {"rollout": {"incarnation": incarnation, "number": number, "replicas": replicas, **more}}


def view(
    pods: list[PodView],
    *,
    replicas: int = 4,
    least: int = 0,
    asked: dict[str, Any] | None = None,
    old: RolloutGrant | None = None,
    released: tuple[int, ...] = (),
    suspend: bool = False,
    **status: Any,
) -> CapacityView:
    """The capacity of a job whose driver has number 1. Its status records all pods but those of the indices `released`."""
    allocation: dict[str, Any] = {"incarnation": {"number": 1, "request": "token"}}
    if old:
        allocation["grant"] = {"rollout": old.to_json()}
    records = [{"index": p.place.index, "attempt": 0, "wasReady": True} for p in pods if p.place.index not in released]
    counts = {"desired": 0, "ready": 0, "readyText": "0/0", "nextAttempt": 1 if released else 0}
    roles = {"rollout": {**counts, "pods": records}}
    found = {"allocation": allocation, "roles": roles, **({"demand": asked} if asked else {}), **status}
    return CapacityView(JOB, replicas, least, suspend, RLJobStatus.model_validate(found), tuple(pods))


def granted(*arguments: Any, **more: Any) -> RolloutGrant:
    return rollout_grant_of(view(*arguments, **more), NOW)


def leaving(grant: RolloutGrant) -> list[str]:
    return [each.pod for each in grant.leaving or ()]


def four() -> list[PodView]:
    return [pod(index) for index in range(4)]


@pytest.mark.parametrize(
    ("asked", "answers", "replicas"),
    [
        (None, None, 4),
        (demand(2, number=7), 7, 2),
        (demand(9), 1, 4),
        (demand(0), 1, 1),
        (demand(2, incarnation=0), None, 4),
        (demand(2, incarnation=2), None, 4),
    ],
)
def test_the_demand_of_this_incarnation_within_the_bounds_of_the_spec(
    asked: dict[str, Any] | None, answers: int | None, replicas: int
) -> None:
    found = granted([], least=1, asked=asked)
    assert (found.answers, found.replicas, found.leaving) == (answers, replicas, None)


def test_without_a_minimum_a_job_may_have_no_rollout_pods() -> None:
    assert leaving(granted(four(), asked=demand(0))) == [name(index) for index in (3, 2, 1, 0)]


def test_pods_leave_as_the_driver_says_then_unready_ones_then_the_highest() -> None:
    pods = [pod(0), pod(1, ready=False), pod(2), pod(3)]
    found = granted(pods, asked=demand(1, giveFirst=[name(0), "sums-rollout-9-a9"]))
    assert leaving(found) == [name(0), name(1), name(3)]
    assert {each.deadline for each in found.leaving or ()} == {SOON}


def test_pods_that_are_going_anyway_take_no_other_with_them() -> None:
    assert leaving(granted([pod(0), pod(1, deleted=True), pod(2)], asked=demand(2))) == []


def named(*indices: int, deadline: str = SOON) -> RolloutGrant:
    pods = [LeavingPod(pod=name(index), deadline=deadline) for index in indices]
    return RolloutGrant(answers=1, replicas=4 - len(indices), leaving=pods)


def test_a_pod_stays_named_with_its_first_deadline_until_it_is_gone_and_no_record_is_left() -> None:
    earlier = stamp(NOW + timedelta(seconds=7))
    old = named(1, deadline=earlier)
    asked = demand(3)
    assert granted(four(), asked=asked, old=old).leaving == old.leaving
    going = [pod(0), pod(1, deleted=True), pod(2), pod(3)]
    assert granted(going, asked=asked, old=old, released=(1,)).leaving == old.leaving
    gone = [pod(0), pod(2), pod(3)]
    recorded = view(gone, asked=asked, old=old)
    record = {"index": 1, "attempt": 0}
    roles = recorded.status.roles.to_json() if recorded.status.roles else {}
    roles["rollout"]["pods"].insert(1, record)
    status = RLJobStatus.model_validate(recorded.status.to_json() | {"roles": roles})
    found = rollout_grant_of(CapacityView(JOB, 4, 0, False, status, tuple(gone)), NOW)
    assert found
    assert found.leaving == old.leaving, "else its end would be counted as a loss"
    assert granted(gone, asked=asked, old=old).leaving is None


def test_more_room_takes_pods_back_in_the_opposite_order() -> None:
    old = named(3, 2, 1)
    assert leaving(granted(four(), asked=demand(3), old=old)) == [name(3)]
    assert leaving(granted(four(), asked=demand(3, giveFirst=[name(1)]), old=old)) == [name(1)]
    assert leaving(granted(four(), asked=demand(4), old=old)) == []


@pytest.mark.parametrize(
    ("pods", "more", "released"),
    [
        (four(), {"drained": [name(3)]}, ()),
        ([*four()[:3], pod(3, deleted=True)], {}, ()),
        (four(), {}, (3,)),
    ],
)
def test_a_pod_that_is_drained_deleted_or_let_go_is_not_taken_back(
    pods: list[PodView], more: dict[str, Any], released: tuple[int, ...]
) -> None:
    assert leaving(granted(pods, asked=demand(4, **more), old=named(3), released=released)) == [name(3)]


def test_a_pod_whose_deadline_has_passed_is_not_taken_back() -> None:
    assert leaving(granted(four(), asked=demand(4), old=named(3, deadline=stamp(NOW)))) == [name(3)]


def condition(kind: str) -> dict[str, Any]:
    found = {"type": kind, "status": "True", "reason": "X", "lastTransitionTime": stamp(NOW)}
    return {"conditions": [found]}


def test_a_job_that_has_ended_or_is_suspended_has_no_grant() -> None:
    old = named(3)
    for status in (condition("Failed"), condition("Succeeded")):
        assert grant_of(view(four(), old=old, **status), NOW) is None
    assert grant_of(view([], old=old, suspend=True, **condition("Suspended")), NOW) is None
    assert granted([], old=old, **condition("Suspended")).leaving is None, "it is to resume"
    assert grant_of(view(four(), asked=demand(1), old=old, suspend=True), NOW) == Grant(rollout=old)
    assert grant_of(view(four(), asked=demand(1), old=old, suspendTime=stamp(NOW)), NOW) == Grant(rollout=old)


def test_only_a_new_grant_is_published() -> None:
    job: dict[str, Any] = {
        "metadata": {"namespace": "research", "name": "sums", "uid": "uid", "resourceVersion": "1"},
        "spec": {"rollout": {"replicas": 2}},
    }
    first = plan(Observed(KEY.capacity, job), NOW)
    assert first == Plan((PublishGrant({"rollout": {"replicas": 2}}),))
    job["status"] = {"allocation": {"grant": {"rollout": {"replicas": 2}}}}
    assert plan(Observed(KEY.capacity, job), NOW).empty
    job["status"] |= condition("Failed")
    assert plan(Observed(KEY.capacity, job), NOW) == Plan((PublishGrant(None),))
    job["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert plan(Observed(KEY.capacity, job), NOW).empty
    assert plan(Observed(KEY.capacity, None), NOW).empty


def environment_view(capacity: CapacityView) -> CapacityView:
    """The same pods, demand and grant, of one environment pool; a rollout pod and its demand stand beside."""
    status = capacity.status.to_json()
    rename = json.dumps(status).replace("sums-rollout-", "sums-environment-games-")
    renamed = json.loads(rename)
    rollout, records = renamed["demand"].pop("rollout"), renamed["roles"].pop("rollout")
    pools = [
        {"name": "games", **{key: rollout.pop(key) for key in ("replicas", "giveFirst", "drained") if key in rollout}}
    ]
    records["pods"] = [record | {"pool": "games"} for record in records["pods"]]
    if grant := renamed["allocation"].pop("grant", None):
        old = grant["rollout"]
        pool = {"name": "games", "replicas": old["replicas"]} | (
            {"leaving": old["leaving"]} if "leaving" in old else {}
        )
        renamed["allocation"]["grant"] = {"environment": {"pools": [pool]}}
    renamed["demand"]["environment"] = {**rollout, "pools": pools}
    renamed["roles"]["environment"] = records
    most = max(capacity.replicas, 1)
    pool = EnvironmentPoolSpec(name="games", replicas=most, min_replicas=min(max(capacity.min_replicas, 1), most))
    pods = [
        replace(p, name=p.name.replace("rollout-", "environment-games-"), place=Place("games", p.place.index))
        for p in capacity.pods
    ]
    beside = replace(pods[0], name="sums-environment-tools-0-a0", place=Place("tools", 0)) if pods else None
    return CapacityView(
        JOB,
        2,
        0,
        suspend=False,
        status=RLJobStatus.model_validate(renamed),
        pods=(),
        environment_pools=(pool, EnvironmentPoolSpec(name="tools")),
        environment_pods=(*pods, *([beside] if beside else [])),
    )


def test_an_environment_pool_keeps_a_pod_and_without_a_demand_has_what_its_spec_says() -> None:
    pools = (
        EnvironmentPoolSpec(name="games", replicas=4),
        EnvironmentPoolSpec(name="tools", replicas=2, min_replicas=2),
    )
    status: dict[str, Any] = {"allocation": {"incarnation": {"number": 1, "request": "token"}}}
    for asked, replicas, answers in ((None, (4, 2), None), (0, (1, 2), 3), (9, (4, 2), 3), (3, (3, 2), 3)):
        if asked is not None:
            demands = [{"name": "games", "replicas": asked}]
            status["demand"] = {"environment": {"incarnation": 1, "number": 3, "pools": demands}}
        capacity = CapacityView(JOB, 1, 0, False, RLJobStatus.model_validate(status), (), environment_pools=pools)
        grant = environment_grant_of(capacity, NOW)
        assert tuple(pool.replicas for pool in grant.pools or ()) == replicas
        assert grant.answers == answers
    allocation = {"incarnation": {"number": 2, "request": "another"}, "grant": {"environment": grant.to_json()}}
    status = RLJobStatus.model_validate(status | {"allocation": allocation})
    grant = environment_grant_of(CapacityView(JOB, 1, 0, False, status, (), environment_pools=pools), NOW)
    assert tuple(pool.replicas for pool in grant.pools or ()) == (3, 2), "the next driver has asked for nothing yet"
    assert grant.answers is None


def test_a_job_without_environments_is_granted_none() -> None:
    grant = grant_of(view(four()), NOW)
    assert grant
    assert grant.environment is None


def test_a_spec_of_another_version_changes_no_grant() -> None:
    metadata = {"namespace": "research", "name": "sums", "uid": "uid"}
    assert plan(Observed(KEY.capacity, {"metadata": metadata, "spec": {"rollout": {"replicas": "many"}}}), NOW).empty


INDICES = st.sets(st.integers(0, 7), max_size=6)


@st.composite
def capacities(draw: st.DrawFn) -> CapacityView:
    """Any pods, an old grant that names any of them, and any demand."""
    indices = sorted(draw(INDICES))
    pods = [pod(i, ready=draw(st.booleans()), deleted=draw(st.integers(0, 5)) == 0) for i in indices]
    replicas = draw(st.integers(0, 6))
    names = st.lists(st.sampled_from([name(i) for i in range(8)]), unique=True, max_size=4)
    deadlines = st.sampled_from([stamp(NOW - timedelta(seconds=1)), stamp(NOW + timedelta(seconds=9)), SOON])
    old = [LeavingPod(pod=each, deadline=draw(deadlines)) for each in draw(names)]
    asked = demand(
        draw(st.integers(0, 9)),
        number=draw(st.integers(1, 9)),
        incarnation=draw(st.integers(0, 1)),
        giveFirst=draw(names),
        drained=draw(names),
    )
    grant = RolloutGrant(replicas=draw(st.integers(0, 6)), leaving=old or None)
    return view(
        pods,
        replicas=replicas,
        least=draw(st.integers(0, replicas)),
        asked=asked,
        old=draw(st.sampled_from([None, grant])),
    )


def again(capacity: CapacityView, grant: RolloutGrant) -> CapacityView:
    allocation = (capacity.status.allocation.to_json() if capacity.status.allocation else {}) | {
        "grant": {"rollout": grant.to_json()}
    }
    status = RLJobStatus.model_validate(capacity.status.to_json() | {"allocation": allocation})
    return CapacityView(capacity.job, capacity.replicas, capacity.min_replicas, capacity.suspend, status, capacity.pods)


@given(capacities())
def test_the_grant_is_within_bounds_names_pods_that_are_there_and_is_stable(capacity: CapacityView) -> None:
    grant = rollout_grant_of(capacity, NOW)
    assert grant
    assert capacity.min_replicas <= grant.replicas <= capacity.replicas
    names = leaving(grant)
    assert len(names) == len(set(names))
    assert set(names) <= {p.name for p in capacity.pods}
    serving = [p for p in capacity.pods if p.name not in names and p.deleted_at is None]
    assert len(serving) <= grant.replicas, "what is too much is named"
    before = {each.pod: each.deadline for each in _old(capacity)}
    for each in grant.leaving or ():
        assert each.deadline == before.get(each.pod, SOON), "a deadline stays"
    taken_back = before.keys() - set(names)
    drained = set(
        (capacity.status.demand.rollout.drained if capacity.status.demand and capacity.status.demand.rollout else None)
        or ()
    )
    counts = grant.answers is not None
    for p in capacity.pods:
        if p.name in taken_back:
            assert p.deleted_at is None
            assert not (counts and p.name in drained)
    assert rollout_grant_of(again(capacity, grant), NOW) == grant


@given(capacities())
def test_pods_of_an_environment_pool_leave_as_rollout_pods_do(capacity: CapacityView) -> None:
    bounded = replace_bounds(capacity)
    if rollout_demand(bounded.status) is None and (old := rollout_grant(bounded.status)):
        most = max(old.replicas, bounded.min_replicas)  # what was granted stays
        bounded = replace(bounded, replicas=min(bounded.replicas, most))
    grant, rollout = environment_grant_of(environment_view(bounded), NOW), rollout_grant_of(bounded, NOW)
    games, tools = grant.pools or ()
    assert grant.answers == rollout.answers
    assert games.replicas == rollout.replicas
    assert [each.pod.replace("environment-games-", "rollout-") for each in games.leaving or ()] == leaving(rollout)
    assert (tools.replicas, tools.leaving) == (1, None), "the pods of one pool are none of the other"


def replace_bounds(capacity: CapacityView) -> CapacityView:
    """With the bounds that an environment pool may have: at least one pod."""
    most = max(capacity.replicas, 1)
    return replace(capacity, replicas=most, min_replicas=min(max(capacity.min_replicas, 1), most))


def _old(capacity: CapacityView) -> list[LeavingPod]:
    grant = capacity.status.allocation.grant if capacity.status.allocation else None
    return (grant.rollout.leaving if grant and grant.rollout else None) or []
