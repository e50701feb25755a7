"""When a job is planned for, and when again."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from longboat_operator.apply import Applied
from longboat_operator.controller import BURST_SECONDS, HELD_SECONDS, Controller
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import TooManyRequestsError, TransportError
from longboat_operator.lease import LeadershipLostError
from longboat_operator.model import (
    CapacityKey,
    DeleteObject,
    EmitEvent,
    JobKey,
    Key,
    Observed,
    Plan,
    PublishStatus,
    Target,
)
from longboat_operator.queue import WorkQueue
from longboat_operator.rejections import Rejections
from longboat_operator.schedule import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS
from longboat_operator.watch.cache import Cache, Change, ObjectKey, Source
from longboat_operator.watch.expectations import Expectation
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness

X, Y = JobKey("a", "x"), JobKey("a", "y")
PODS = Source("Pod", "a")
SOMETHING = Plan((EmitEvent("Normal", "Reason", "message"),))


class Bench:
    """A controller whose plans and outcomes the test sets, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue(clock=lambda: self.now)
        self.plan: Any = Plan()
        self.outcome: Any = Applied(())
        self.applied: list[Key] = []
        self.observed: list[Observed] = []
        self.asked: list[Target] = []
        self.answer: Any = None
        itself: Any = self
        self.freshness = Freshness([PODS], [])
        self.freshness.note_listed(PODS, 0.0)
        self.controller = Controller(
            self.cache,
            self.queue,
            self.observe,
            self.make_plan,
            itself,
            itself,
            self.freshness,
            ServerClock(),
            clock=lambda: self.now,
        )
        self.controller.lead()

    def observe(self, cache: Cache, key: Key) -> Observed:
        return Observed(key, cache.job(key.job if isinstance(key, CapacityKey) else key))

    def make_plan(self, observed: Observed, now: datetime) -> Plan:
        assert now.tzinfo is not None
        self.observed.append(observed)
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan(observed) if callable(self.plan) else self.plan

    async def answers(self, targets: tuple[Target, ...], observed: Observed, rejections: Rejections) -> Any:
        self.asked += targets
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, str):
            for target in targets:
                rejections.note(target, self.answer)
            return {}
        return dict.fromkeys(targets, self.answer)

    async def apply(self, _: Plan, observed: Observed, rejections: Rejections) -> Applied:
        self.applied.append(observed.key)
        self.rejections = rejections
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def put(self, obj: dict[str, Any]) -> None:
        self.tell(self.cache.put(obj))

    def tell(self, change: Change | None) -> None:
        if change is not None:
            self.controller.changed(change)

    def due(self) -> list[JobKey]:
        """Jobs that are due now; they and their capacities are taken off the queue."""
        return [key for key in self.all_due() if isinstance(key, JobKey)]

    def all_due(self) -> list[Key]:
        """Keys that are due at the end of a burst that began now, taken off the queue."""
        found = []
        while (key := self.queue._schedule.take(self.now + BURST_SECONDS)) is not None:
            found.append(key)
            self.queue.done(key)
        return found


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.put(job("x", 1))
    assert made.due() == [X]
    return made


def job(name: str, version: int, runtime: str = "host", **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "a", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {
        "kind": "RLJob",
        "metadata": metadata,
        "spec": {"runtimeRef": {"kind": "RLRuntime", "name": runtime}, **spec},
    }


def pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    metadata = {"namespace": "a", "name": name, "resourceVersion": str(version), "labels": {"longboat.dev/job": "x"}}
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase}}


async def test_children_wake_their_job_only_by_a_change_of_content(bench: Bench) -> None:
    bench.put(pod("p", 2))
    assert bench.due() == [X]
    bench.put(pod("p", 3))
    assert bench.due() == []
    bench.put(pod("p", 4, "Running"))
    assert bench.due() == [X]
    bench.tell(bench.cache.remove(ObjectKey("Pod", "a", "p"), 5))
    assert bench.due() == [X]


async def test_a_runtime_wakes_the_jobs_that_refer_to_it(bench: Bench) -> None:
    bench.put(job("y", 2, runtime="other"))
    bench.due()
    metadata = {"namespace": "a", "name": "host", "resourceVersion": "3"}
    bench.put({"kind": "RLRuntime", "metadata": metadata, "spec": {}})
    assert bench.due() == [X]
    bench.put({"kind": "RLRuntime", "metadata": {**metadata, "namespace": "b"}, "spec": {}})
    assert bench.due() == []
    bench.put({"kind": "ClusterRLRuntime", "metadata": {"name": "host", "resourceVersion": "4"}, "spec": {}})
    assert bench.due() == []


async def test_a_job_whose_pods_have_no_nodes_is_planned_again_once_a_quota_refuses_another_ones(bench: Bench) -> None:
    placement = {"minimum": 5, "placed": 0, "since": "2026-01-01T00:00:00Z"}
    bench.put({**job("x", 2), "status": {"placement": placement}})
    bench.put({**job("y", 3), "status": {"placement": {**placement, "placed": 3}}})
    bench.due()
    lacking = {"placement": {"minimum": 5, "placed": 0}}
    refused = {**lacking, "conditions": [{"type": "Scheduled", "status": "False", "reason": "QuotaExceeded"}]}
    bench.put({**job("z", 4), "status": refused})
    assert set(bench.due()) == {X, JobKey("a", "z")}, "the half-placed one looks when its time is over"
    bench.put({**job("z", 5), "status": {**refused, "phase": "Queued"}})
    assert bench.due() == [JobKey("a", "z")]


async def test_a_job_and_its_pool_are_planned_apart(bench: Bench) -> None:
    bench.put(job("x", 2, rollout={"replicas": 3}))
    assert set(bench.all_due()) == {X, X.capacity}
    labels = {"longboat.dev/job": "x", "longboat.dev/role": "rollout"}
    metadata = {"namespace": "a", "name": "p", "uid": "1", "resourceVersion": "3", "labels": labels}
    bench.put({"kind": "Pod", "metadata": metadata, "status": {}})
    assert set(bench.all_due()) == {X, X.capacity}
    bench.put(pod("q", 4))
    assert bench.all_due() == [X], "it is no rollout pod"


async def test_a_burst_of_changes_costs_a_job_one_plan_and_its_pool_none_of_the_wait(bench: Bench) -> None:
    bench.all_due()
    bench.put(job("x", 2, rollout={"replicas": 3}))
    schedule = bench.queue._schedule
    assert [schedule.take(bench.now) for _ in range(2)] == [X.capacity, None]
    bench.now = 0.75 * BURST_SECONDS
    bench.put(pod("p", 3))
    bench.now = BURST_SECONDS
    assert schedule.take(bench.now) == X, "a change that follows doesn't put it off"
    bench.put(pod("p", 4, "Running"))
    bench.queue.add_after(X, None)
    schedule.done(X, bench.now)
    assert schedule.take(bench.now) is None
    bench.now = 2 * BURST_SECONDS
    assert schedule.take(bench.now) == X, "what changes meanwhile outlives the timer that the work sets"


async def test_what_a_node_says_of_a_resize_is_planned_for_at_once(bench: Bench) -> None:
    def resized(version: int, cpu: str) -> dict[str, Any]:
        made = pod("r", version, "Running")
        made["metadata"]["labels"]["longboat.dev/role"] = "reward"
        made["status"]["containerStatuses"] = [{"name": "graders", "resources": {"limits": {"cpu": cpu}}}]
        return made

    bench.put(resized(3, "2"))
    bench.all_due()
    bench.put(resized(4, "1"))
    assert bench.queue._schedule.take(bench.now) == X


async def test_a_pool_waits_for_its_own_writes_and_its_job_for_both(bench: Bench) -> None:
    """A second plan from a snapshot without the first one's grant would answer a demand twice, or take a pod back again.

    The job's would publish a status of a version that is outdated already.
    """
    bench.plan = SOMETHING
    bench.outcome = Applied((Expectation(ObjectKey("Pod", "a", "p"), 6),))
    assert await bench.controller.reconcile(X) == "applied"
    bench.outcome = Applied((Expectation(ObjectKey("RLJob", "a", "x"), 7),))
    assert await bench.controller.reconcile(X.capacity) == "applied", "it has nothing to do with the job's pod"
    bench.outcome = Applied(())
    assert await bench.controller.reconcile(X.capacity) == "held"
    assert await bench.controller.reconcile(X) == "held"
    bench.all_due()
    bench.put(job("x", 7))
    assert bench.all_due() == [X.capacity], "nothing of it has changed, but it waited for this"
    assert await bench.controller.reconcile(X.capacity) == "applied"
    assert await bench.controller.reconcile(X) == "held"
    bench.put(pod("p", 6))
    assert bench.all_due() == [X]
    assert await bench.controller.reconcile(X) == "applied"
    assert bench.applied == [X, X.capacity, X.capacity, X]


PHASE: dict[str, Any] = {"phase": "Running"}
RECORDS: dict[str, Any] = {"roles": {"trainer": {"pods": [{"index": 0, "attempt": 1}]}}}


@pytest.mark.parametrize(
    ("actions", "status", "woken"),
    [
        ((PublishStatus(PHASE),), PHASE, False),
        ((PublishStatus(PHASE), EmitEvent("Normal", "Reason", "message")), PHASE, False),
        ((PublishStatus(RECORDS),), RECORDS, True),
        ((DeleteObject("Pod", "p", "uid-p"), PublishStatus(PHASE)), PHASE, True),
    ],
    ids=["shown", "shown and told", "read back", "not only published"],
)
async def test_a_plan_that_only_published_what_is_shown_is_not_made_again(
    bench: Bench, actions: tuple[Any, ...], status: dict[str, Any], woken: bool
) -> None:
    bench.plan = Plan(actions)
    bench.outcome = Applied((Expectation(ObjectKey("RLJob", "a", "x"), 7),))
    await bench.controller.reconcile(X)
    bench.put(job("x", 7) | {"status": status})
    assert bench.due() == [X] * woken
    bench.put(job("x", 8) | {"status": status | {"phase": "Failed"}})
    assert bench.due() == [X], "somebody else has written it"


async def test_a_standby_queues_nothing_and_a_new_leader_plans_for_all() -> None:
    made = Bench()
    made.controller._leading = False
    made.put(job("x", 1))
    made.put(job("y", 2))
    assert made.due() == []
    made.controller.lead()
    assert made.due() == [X, Y]


async def test_a_new_leader_plans_for_capacities_first() -> None:
    """A job's status that is written beside its grant would be of an old version, and its plan in vain."""
    made = Bench()
    made.controller._leading = False
    made.put(job("x", 1))
    made.put(job("y", 2))
    made.controller.lead()
    schedule = made.queue._schedule
    assert [schedule.take(made.now) for _ in range(3)] == [X.capacity, Y.capacity, None]
    assert [schedule.take(made.now + BURST_SECONDS) for _ in range(2)] == [X, Y]


async def test_no_plan_before_the_cache_shows_the_last_writes(bench: Bench) -> None:
    bench.plan = SOMETHING
    bench.outcome = Applied((Expectation(ObjectKey("Pod", "a", "p"), 10),))
    assert await bench.controller.reconcile(X) == "applied"
    assert await bench.controller.reconcile(X) == "held"
    assert bench.applied == [X]
    bench.put(pod("q", 9))  # wakes, and is held again: it isn't what was waited for
    assert bench.due() == [X]
    assert await bench.controller.reconcile(X) == "held"
    bench.put(pod("p", 10))
    assert bench.due() == [X]
    bench.outcome = Applied(())
    assert await bench.controller.reconcile(X) == "applied"


TOO_LATE = Applied((), newer=(Expectation(ObjectKey("RLJob", "a", "x"), 6),))


@pytest.mark.parametrize("key", [X, X.capacity])
async def test_a_write_that_came_too_late_is_planned_again_as_soon_as_the_cache_has_what_came_before_it(
    bench: Bench, key: Key
) -> None:
    bench.put(job("x", 5))
    bench.all_due()
    bench.plan, bench.outcome = SOMETHING, TOO_LATE
    assert await bench.controller.reconcile(key) == "stale"
    assert bench.all_due() == []
    bench.put(job("x", 6))  # a step is reported, which calls for no plan
    assert bench.all_due() == [key]
    bench.put(job("x", 7))
    assert bench.all_due() == []


async def test_a_write_that_came_too_late_is_planned_again_at_once_if_the_cache_has_it_by_then(bench: Bench) -> None:
    bench.put(job("x", 6))
    bench.all_due()
    bench.plan, bench.outcome = SOMETHING, TOO_LATE
    await bench.controller.reconcile(X)
    assert bench.due() == [X]


async def test_between_two_plans_all_other_tasks_get_a_turn(bench: Bench) -> None:
    turns, turns_of_plans = 0, []

    def plan(observed: Observed) -> Plan:
        turns_of_plans.append(turns)
        return Plan() if observed.looked_up else Plan(look_up=(("Pod", "p"),))

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    bench.plan = plan
    others = [JobKey("a", f"job-{n}") for n in range(20)]
    other = asyncio.create_task(take_turns())
    await asyncio.gather(*(bench.controller.reconcile(each) for each in others))
    other.cancel()
    assert len(turns_of_plans) == 40
    assert len(set(turns_of_plans)) == 40


async def test_a_write_that_came_too_late_is_planned_again_in_any_case(bench: Bench) -> None:
    bench.plan, bench.outcome = SOMETHING, TOO_LATE
    await bench.controller.reconcile(X)
    assert bench.due() == []
    bench.now += FIRST_BACKOFF_SECONDS
    assert bench.due() == [X]


async def test_what_was_waited_for_may_come_without_a_change(bench: Bench) -> None:
    bench.plan = SOMETHING
    bench.outcome = Applied((Expectation(ObjectKey("Pod", "a", "p"), 10),))
    await bench.controller.reconcile(X)
    assert await bench.controller.reconcile(X) == "held"
    bench.cache.saw(Source("Pod", None), 11)
    bench.now = HELD_SECONDS
    assert bench.due() == [X]
    assert await bench.controller.reconcile(X) == "applied"


async def test_a_pod_that_came_and_went_before_a_new_list_wakes_its_job(bench: Bench) -> None:
    bench.plan = SOMETHING
    bench.outcome = Applied((Expectation(ObjectKey("Pod", "a", "p"), 10),))
    assert await bench.controller.reconcile(X) == "applied"
    pods = Source("Pod", None)
    feed = Feed(
        bench.cache, Freshness([pods], [pods]), ServerClock(), bench.controller.changed, bench.controller.listed
    )
    feed.listed(pods, {}, 20)  # the watch was too old, and the pod is gone already
    assert bench.due() == [X]
    assert await bench.controller.reconcile(X) == "applied"


async def test_a_namespace_is_planned_once_all_its_kinds_have_been_listed(bench: Bench) -> None:
    bench.due()
    feed = Feed(bench.cache, bench.freshness, ServerClock(), bench.controller.changed, bench.controller.listed)
    feed.refused(PODS, "forbidden")
    assert await bench.controller.reconcile(X) == "unserved"
    assert bench.due() == []
    feed.listed(PODS, {}, 20)
    assert bench.due() == [X]
    bench.plan = SOMETHING
    assert await bench.controller.reconcile(X) == "applied"


async def test_even_a_change_that_wakes_nobody_frees_who_waited_for_it(bench: Bench) -> None:
    bench.put(pod("p", 2))
    bench.due()
    bench.outcome = Applied((Expectation(ObjectKey("Pod", "a", "p"), 3),))
    bench.plan = SOMETHING
    await bench.controller.reconcile(X)
    assert await bench.controller.reconcile(X) == "held"
    bench.put(pod("p", 3))  # the same content, newer
    assert bench.due() == [X]


async def test_a_plan_is_made_again_when_it_asks_for_it(bench: Bench) -> None:
    bench.plan = Plan(look_again_seconds=30.0)
    assert await bench.controller.reconcile(X) == "empty"
    bench.now = 29.9
    assert bench.due() == []
    bench.now = 30.0
    assert bench.due() == [X]
    bench.plan = Plan()
    await bench.controller.reconcile(X)
    bench.now = 1e6
    assert bench.due() == []


async def test_a_write_without_an_answer_is_tried_again_ever_more_rarely_and_not_before_the_server_wants(
    bench: Bench,
) -> None:
    bench.plan = SOMETHING
    bench.outcome = Applied((), unanswered=TransportError("no answer"))
    waits = []
    for _ in range(3):
        assert await bench.controller.reconcile(X) == "unanswered"
        timer = bench.queue._schedule.next_timer()
        assert timer is not None
        waits.append(timer - bench.now)
        bench.now = timer
        assert bench.due() == [X]
    assert waits[1:] == [2 * waits[0], 4 * waits[0]]
    busy = TooManyRequestsError(429, "TooManyRequests", "slow down")
    busy.retry_after_seconds = 100.0
    bench.outcome = Applied((), unanswered=busy)
    await bench.controller.reconcile(X)
    bench.queue.add(Y)
    assert bench.queue._bucket.wait_seconds(bench.now) == LONGEST_BACKOFF_SECONDS, "nor does any other key ask"
    assert bench.due() == [Y]
    bench.now += 99.0
    assert bench.due() == []
    bench.now += 1.0
    assert bench.due() == [X]


async def test_a_rejection_is_told_to_the_next_plan_and_asked_again_in_time(bench: Bench) -> None:
    bench.plan = SOMETHING
    await bench.controller.reconcile(X)
    bench.rejections.note(("Pod", "p"), "exceeded quota")
    await bench.controller.reconcile(X)
    assert bench.observed[-1].rejections == {"p": "Pod p: exceeded quota"}
    timer = bench.queue._schedule.next_timer()
    assert timer is not None
    bench.now = timer
    assert bench.due() == [X]


async def test_a_plan_that_cant_be_made_stops_no_other(bench: Bench) -> None:
    bench.plan = ZeroDivisionError("a bug")
    assert await bench.controller.reconcile(X) == "error"
    assert bench.applied == []
    timer = bench.queue._schedule.next_timer()
    assert timer is not None
    bench.plan = SOMETHING
    bench.outcome = KeyError("a bug while applying")
    assert await bench.controller.reconcile(X) == "error"
    bench.outcome = Applied(())
    assert await bench.controller.reconcile(X) == "applied"


ACCOUNT = ("ServiceAccount", "x")


def curious(observed: Observed) -> Plan:
    """A plan that has to know who has a name before it does something."""
    return SOMETHING if ACCOUNT in observed.looked_up else Plan(look_up=(ACCOUNT,))


async def test_what_a_plan_has_to_know_is_looked_up_before_it_is_carried_out(bench: Bench) -> None:
    bench.plan, bench.answer = curious, {"kind": "ServiceAccount"}
    assert await bench.controller.reconcile(X) == "applied"
    assert bench.asked == [ACCOUNT]
    assert [observed.looked_up for observed in bench.observed] == [{}, {ACCOUNT: {"kind": "ServiceAccount"}}]
    assert len({observed.random for observed in bench.observed}) == 1
    await bench.controller.reconcile(X)
    assert bench.asked == [ACCOUNT, ACCOUNT], "an answer is good for one plan: others may change what they own"
    assert len({observed.random for observed in bench.observed}) == 2


async def test_a_look_up_that_is_rejected_is_told_to_the_plan_and_not_asked_twice(bench: Bench) -> None:
    bench.plan, bench.answer = curious, "forbidden"
    assert await bench.controller.reconcile(X) == "empty"
    assert bench.asked == [ACCOUNT]
    assert bench.observed[-1].rejections == {"x": "ServiceAccount x: forbidden"}


async def test_a_look_up_without_an_answer_is_tried_again(bench: Bench) -> None:
    bench.plan, bench.answer = curious, TransportError("no answer")
    assert await bench.controller.reconcile(X) == "unanswered"
    assert bench.applied == []
    timer = bench.queue._schedule.next_timer()
    assert timer is not None
    bench.now = timer
    assert bench.due() == [X]


async def test_lost_leadership_ends_the_worker(bench: Bench) -> None:
    bench.plan = SOMETHING
    bench.outcome = LeadershipLostError("lost")
    bench.queue.add(X)
    with pytest.raises(LeadershipLostError):
        await bench.controller.work()


async def test_a_job_that_is_gone_leaves_nothing_behind(bench: Bench) -> None:
    bench.plan = Plan(SOMETHING.actions, look_again_seconds=30.0)
    await bench.controller.reconcile(X)
    bench.tell(bench.cache.remove(ObjectKey("RLJob", "a", "x"), 9))
    assert bench.due() == [X]
    bench.plan = Plan()
    assert await bench.controller.reconcile(X) == "gone"
    assert bench.controller._rejections == {}
    assert bench.queue._schedule.next_timer() is None


def published(version: int, **status: Any) -> dict[str, Any]:
    return {**job("x", version), "status": status}


async def test_a_job_waits_ever_longer_when_another_process_publishes_over_its_status(bench: Bench) -> None:
    bench.plan = SOMETHING
    waits = []
    for version in range(10, 30, 2):
        bench.outcome = Applied((), published=published(version, reason="ours"))
        assert await bench.controller.reconcile(X) == "applied"
        bench.put(published(version + 1, reason="theirs"))
        assert await bench.controller.reconcile(X) == "overwritten"
        timer = bench.queue._schedule.next_timer()
        assert timer is not None
        waits.append(timer - bench.now)
        bench.now = timer
        bench.due()
    assert waits[0] == FIRST_BACKOFF_SECONDS
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_BACKOFF_SECONDS


async def test_what_driver_and_capacity_write_overwrites_nothing(bench: Bench) -> None:
    bench.plan, bench.outcome = SOMETHING, Applied((), published=published(10, phase="Running"))
    await bench.controller.reconcile(X)
    training, grant = {"incarnation": 1, "state": "Running"}, {"rollout": {"replicas": 1}}
    bench.put(published(11, phase="Running", training=training, allocation={"grant": grant}))
    assert await bench.controller.reconcile(X) == "applied"


async def test_a_job_of_the_same_name_overwrites_nothing(bench: Bench) -> None:
    """Its predecessor may have gone without a plan that saw it gone, as with `kubectl replace --force`."""
    bench.plan, bench.outcome = SOMETHING, Applied((), published=published(10, phase="Running"))
    await bench.controller.reconcile(X)
    successor = job("x", 12)
    successor["metadata"]["uid"] = "another"
    bench.tell(bench.cache.remove(ObjectKey("RLJob", "a", "x"), 11))
    bench.put(successor)
    assert await bench.controller.reconcile(X) == "applied"


async def test_a_status_that_may_have_been_stored_overwrites_nothing(bench: Bench) -> None:
    bench.plan, bench.outcome = SOMETHING, Applied((), published=published(10, phase="Running"))
    await bench.controller.reconcile(X)
    bench.outcome = Applied((), TransportError("no answer"))
    assert await bench.controller.reconcile(X) == "unanswered"
    bench.put(published(11, phase="Failed"))
    assert await bench.controller.reconcile(X) == "unanswered"


def node(name: str, version: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
    }


def pod_on(job: str, node: str) -> dict[str, Any]:
    labels = {"longboat.dev/job": job, "longboat.dev/role": "driver"}
    metadata = {"namespace": "a", "name": f"{job}-driver-0-a0", "uid": job, "resourceVersion": "1", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}}


def test_a_node_that_takes_no_new_pods_any_more_or_again_wakes_the_jobs_that_have_pods_there(bench: Bench) -> None:
    bench.put(pod_on("x", "node0"))
    bench.put(pod_on("y", "node1"))
    bench.due()
    bench.put(node("node0", 2))
    assert bench.due() == [X]
    bench.put(node("node0", 3))
    assert bench.due() == [], "its kubelet has written its status"
    bench.tell(bench.cache.remove(ObjectKey("Node", "", "node0"), 4))
    assert bench.due() == [X]


def test_all_jobs_are_planned_once_it_is_known_which_nodes_take_no_pods(bench: Bench) -> None:
    bench.put(job("y", 2))
    bench.due()
    bench.controller.listed(Source("Node", None))
    assert set(bench.due()) == {X, Y}
    bench.cache.note_nodes(listed=True)
    bench.controller.listed(Source("Node", None))
    assert not bench.due(), "what a later list shows comes as changes"
    bench.cache.note_nodes(listed=False)
    bench.controller.listed(Source("Node", None))
    assert set(bench.due()) == {X, Y}, "the right to watch them is gone"
