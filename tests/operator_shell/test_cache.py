"""Whatever order events come in, the cache ends up with what the API server has."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from longboat_operator.kube.clock import ServerClock
from longboat_operator.model import JobKey
from longboat_operator.watch.cache import BySource, Cache, ObjectKey, Source
from longboat_operator.watch.expectations import Expectation, Expectations
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.repair import compare


def pod(name: str, version: int, uid: str = "u", job: str = "x") -> dict[str, Any]:
    metadata = {"namespace": "a", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "labels": {"longboat.dev/job": job}}}


def key(name: str) -> ObjectKey:
    return ObjectKey("Pod", "a", name)


X, Y = JobKey("a", "x"), JobKey("a", "y")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, bool]]:
    """What happened at the server: (name, version, deleted?), versions growing."""
    alive: set[str] = set()
    events = []
    for version in range(1, draw(st.integers(1, 25)) + 1):
        name = draw(st.sampled_from("pqr"))
        deleted = name in alive and draw(st.booleans())
        (alive.discard if deleted else alive.add)(name)
        events.append((name, version, deleted))
    return events


@given(histories(), st.randoms(use_true_random=False), st.sets(st.integers(1, 25)), st.integers(0, 25))
def test_any_order_any_loss_of_deletions_repaired(
    history: list[tuple[str, int, bool]], random: Any, lost: set[int], repaired_at: int
) -> None:
    """Events in any order between objects (and even within one), deletions lost, a re-list somewhere in between."""
    cache = Cache()
    told = [event for event in history if not (event[2] and event[1] in lost)]
    random.shuffle(told)
    cut = random.randint(0, len(told))

    def tell(events: list[tuple[str, int, bool]]) -> None:
        for name, version, deleted in events:
            if deleted:
                cache.remove(key(name), version)
            else:
                cache.put(pod(name, version))

    def relist(list_version: int) -> None:
        listed: dict[ObjectKey, int] = {}
        for name, version, deleted in history:
            if version <= list_version:
                listed.pop(key(name), None)
                if not deleted:
                    listed[key(name)] = version
        difference = compare(cache.versions(Source("Pod", None)), listed, list_version)
        for gone in difference.vanished:
            cache.remove(gone, list_version)

    tell(told[:cut])
    relist(min(repaired_at, len(history)))
    tell(told[cut:])
    relist(len(history))
    alive: dict[str, int] = {}
    for name, version, deleted in history:
        alive.pop(name, None)
        if not deleted:
            alive[name] = version
    assert cache.versions(Source("Pod", None)) == {key(name): version for name, version in alive.items()}
    assert set(cache.children(X)["Pod"]) == set(alive)


KINDS, NAMESPACES = ("Pod", "Role"), ("a", "b")
KEYS = st.builds(ObjectKey, st.sampled_from(KINDS), st.sampled_from(NAMESPACES), st.sampled_from("pq"))


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers()))))
def test_the_values_of_a_source_are_those_of_its_objects(changes: list[tuple[ObjectKey, int | None]]) -> None:
    by_source: BySource[int] = BySource()
    values: dict[ObjectKey, int] = {}
    for changed, value in changes:
        if value is None:
            by_source.drop(changed)
            values.pop(changed, None)
        else:
            by_source.put(changed, value)
            values[changed] = value
        assert by_source.get(changed) == values.get(changed)
    assert dict(by_source.all()) == values
    for kind in KINDS:
        for namespace in (None, *NAMESPACES):
            expected = {k: v for k, v in values.items() if k.kind == kind and namespace in (None, k.namespace)}
            assert dict(by_source.within(Source(kind, namespace))) == expected


def test_children_are_found_by_job_and_move_with_their_label() -> None:
    cache = Cache()
    cache.put(pod("p", 1))
    cache.put(pod("q", 2))
    assert set(cache.children(X)["Pod"]) == {"p", "q"}
    change = cache.put(pod("p", 3, job="y"))
    assert change is not None
    assert change.old is not None
    assert set(cache.children(X)["Pod"]) == {"q"}
    assert set(cache.children(Y)["Pod"]) == {"p"}
    cache.remove(key("p"), 4)
    assert cache.children(Y)["Pod"] == {}
    assert cache.children(Y)["Service"] == {}


def test_the_deletion_of_a_predecessor_doesnt_remove_its_successor() -> None:
    cache = Cache()
    cache.put(pod("p", 1, uid="old"))
    cache.put(pod("p", 9, uid="new"))
    assert cache.remove(key("p"), 8) is None
    held = cache.get(key("p"))
    assert held is not None
    assert held["metadata"]["uid"] == "new"


def test_a_late_event_doesnt_bring_the_dead_back() -> None:
    cache = Cache()
    cache.put(pod("p", 1))
    cache.remove(key("p"), 5)
    assert cache.put(pod("p", 3)) is None
    assert cache.put(pod("p", 6)) is not None
    cache.remove(key("p"), 7)
    cache.forget_deletions(Source("Pod", None), before=7)
    assert cache.put(pod("p", 3)) is None
    cache.forget_deletions(Source("Pod", None), before=8)
    assert cache.put(pod("p", 3)) is not None


def test_expectations_are_met_by_the_object_its_deletion_or_a_later_event_of_its_source() -> None:
    for reach in (
        lambda cache: cache.put(pod("p", 10)),
        lambda cache: cache.put(pod("p", 12)),
        lambda cache: cache.remove(key("p"), 11),
        lambda cache: cache.saw(Source("Pod", None), 10),
        lambda cache: cache.saw(Source("Pod", "a"), 10),
    ):
        cache = Cache()
        expectations = Expectations(cache)
        expectations.expect(X, [Expectation(key("p"), 10)])
        assert not expectations.met(X)
        assert expectations.met(Y)
        cache.put(pod("p", 9))
        cache.put(pod("q", 11))  # another object proves nothing where events come out of order
        cache.saw(Source("Pod", "b"), 99)
        assert not expectations.met(X)
        reach(cache)
        assert expectations.met(X)
        assert expectations.waiting() == []


def test_a_deletion_is_waited_for_whatever_the_answer_said_of_versions() -> None:
    """MODIFIED 11 marks it, DELETED 12 ends it; a DELETE may answer either, or the version before both, or none."""
    marked = pod("p", 11)
    marked["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    for answered in (0, 10, 11, 12):
        cache = Cache()
        cache.put(pod("p", 10))
        expectations = Expectations(cache)
        expectations.expect(X, [Expectation(key("p"), answered, deleted_uid="u")])
        assert not expectations.met(X)
        cache.put(marked)
        assert expectations.met(X) is (answered <= 11)
        cache.remove(key("p"), 12)
        assert expectations.met(X)


def test_a_successor_shows_that_its_predecessor_is_gone() -> None:
    cache = Cache()
    cache.put(pod("p", 10))
    expectations = Expectations(cache)
    expectations.expect(X, [Expectation(key("p"), 99, deleted_uid="u")])
    assert not expectations.met(X)
    cache.put(pod("p", 13, uid="next"))
    assert expectations.met(X)


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 9)),
    st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 9)),
    st.integers(0, 9),
)
def test_a_comparison_repairs_only_what_the_list_proves(
    held: dict[str, int], listed: dict[str, int], version: int
) -> None:
    difference = compare(
        {key(name): at for name, at in held.items()}, {key(name): at for name, at in listed.items()}, version
    )
    assert difference.vanished == {key(name) for name, at in held.items() if name not in listed and at <= version}
    assert difference.newer == {key(name): at for name, at in listed.items() if name not in held or held[name] < at}


def job(status: dict[str, Any], version: int, **metadata: Any) -> dict[str, Any]:
    named = {"namespace": "a", "name": "x", "uid": "x-uid", "resourceVersion": str(version)}
    return {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": named | metadata, "status": status}


def owned(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    made = pod(name, version)
    made["metadata"]["ownerReferences"] = [{"uid": "x-uid"}]
    return {**made, "status": {"phase": phase}}


def roles(**records: Any) -> dict[str, Any]:
    return {"roles": {"trainer": records}}


RECORDED = roles(pods=[{"index": 0, "attempt": 1, "node": "n"}])


@pytest.mark.parametrize(
    "recorded",
    [
        roles(pods=[{"index": 0, "attempt": 1, "lostTime": "2026-01-01T00:00:00Z"}]),
        roles(pods=[{"index": 0, "attempt": 2}]),
        roles(nextAttempt=2),
        None,
    ],
    ids=["lost", "newer", "released", "job gone"],
)
def test_the_last_state_of_a_pod_is_kept_until_its_fate_is_recorded(recorded: dict[str, Any] | None) -> None:
    cache = Cache()
    cache.put(job(RECORDED, 1))
    cache.put(owned("x-trainer-0-a1", 2))
    cache.remove(key("x-trainer-0-a1"), 3, owned("x-trainer-0-a1", 3, "Failed"))
    assert not cache.children(X)["Pod"]
    cache.put(job(RECORDED | {"phase": "Running"}, 4))
    assert cache.last_states(X)["x-trainer-0-a1"]["status"]["phase"] == "Failed"
    if recorded is None:
        cache.remove(ObjectKey("RLJob", "a", "x"), 5)
    else:
        cache.put(job(recorded, 5))
    assert not cache.last_states(X)


def test_without_a_last_state_what_was_held_of_a_pod_is_kept() -> None:
    """A re-list shows no more than that it is gone."""
    cache = Cache()
    cache.put(job(roles(intact=[{"attempt": 1, "indexes": "0-3"}]), 1))
    cache.put(owned("x-trainer-3-a1", 2))
    cache.remove(key("x-trainer-3-a1"), 3)
    assert cache.last_states(X).keys() == {"x-trainer-3-a1"}


def test_no_last_state_is_kept_of_what_nobody_asks_about() -> None:
    cache = Cache()
    cache.put(job(roles(nextAttempt=2), 1))
    for name in ("x-trainer-0-a1", "x-trainer-0-a2", "helper"):
        cache.put(owned(name, 2))
        cache.remove(key(name), 3)
    cache.put(pod("x-trainer-0-a3", 2))  # of an earlier job of the same name
    cache.remove(key("x-trainer-0-a3"), 3)
    assert cache.last_states(X).keys() == {"x-trainer-0-a2"}
    cache.put(job(roles(nextAttempt=2), 4, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert not cache.last_states(X)


def test_nodes_are_unknown_until_they_are_listed_and_for_good_once_that_is_forbidden() -> None:
    nodes, listed = Source("Node", None), list[Source]()
    cache = Cache(may_watch_nodes=True)
    feed = Feed(cache, Freshness([nodes], [nodes], optional=[nodes]), ServerClock(), lambda _: None, listed.append)
    feed.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node0", "uid": "1", "resourceVersion": "1"}})
    feed.refused(nodes, "no answer")
    assert (cache.may_watch_nodes, cache.cordoned(["node0", "node1"])) == (True, None)
    feed.listed(nodes, {ObjectKey("Node", "", "node0"): 1}, 1)
    assert cache.cordoned(["node0", "node1"]) == {"node0"}
    feed.refused(nodes, "no answer")
    assert cache.cordoned(["node0", "node1"]) == {"node0"}
    feed.refused(nodes, "forbidden", forbidden=True)
    assert (cache.may_watch_nodes, cache.cordoned(["node0", "node1"])) == (False, None)
    assert len(listed) == 2, "all jobs are planned, since budgets have to open"
    feed.refused(nodes, "forbidden", forbidden=True)
    assert len(listed) == 2, "once"
    feed.listed(nodes, {}, 2)
    assert (cache.may_watch_nodes, cache.cordoned(["node0", "node1"])) == (True, set())


def test_a_node_concerns_the_jobs_whose_driver_or_trainer_pods_it_has() -> None:
    def on(node: str | None, version: int, role: str = "trainer") -> dict[str, Any]:
        labels = {"longboat.dev/job": "x", "longboat.dev/role": role}
        metadata = {"namespace": "a", "name": f"x-{role}-0-a0", "resourceVersion": str(version), "labels": labels}
        return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node} if node else {}}

    cache = Cache()
    cache.put(on("node1", 1, role="rollout"))
    cache.put(on(None, 2))
    assert not cache.jobs_on("node1")
    cache.put(on("node1", 3))
    assert cache.jobs_on("node1") == {X}
    cache.remove(key("x-trainer-0-a0"), 4)
    assert not cache.jobs_on("node1")
