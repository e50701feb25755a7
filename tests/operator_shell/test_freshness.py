"""A dead watch is noticed, a quiet one is not suspected."""

from __future__ import annotations

from longboat_operator.health import PLANS_LATE_SECONDS, PLANS_STUCK_SECONDS, judge
from longboat_operator.kube.clock import ServerClock
from longboat_operator.model import JobKey
from longboat_operator.watch.cache import Cache, Change, ObjectKey, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import DEAD_SECONDS, LAG_SECONDS, SILENCE_SECONDS, Freshness

JOBS, PODS = Source("RLJob", None), Source("Pod", None)
JOB = ObjectKey("RLJob", "a", "x")


def fresh() -> Freshness:
    freshness = Freshness([JOBS, PODS], bookmarked=[PODS])
    freshness.note_listed(JOBS, 0.0)
    freshness.note_listed(PODS, 0.0)
    return freshness


def test_what_is_not_listed_is_named() -> None:
    freshness = Freshness([JOBS, PODS], bookmarked=[PODS])
    assert freshness.unlisted == [PODS, JOBS]
    assert freshness.problems(0.0) == ["Pod not yet listed", "RLJob not yet listed"]
    freshness.note_listed(JOBS, 0.0)
    assert not freshness.settled
    assert not freshness.serves("a")
    freshness.note_listed(PODS, 0.0)
    assert freshness.settled
    assert freshness.serves("a")
    assert freshness.problems(0.0) == []


def test_namespaces_are_served_without_an_optional_source_that_can_not_be_listed() -> None:
    nodes = Source("Node", None)
    freshness = Freshness([JOBS, nodes], bookmarked=[nodes], optional=[nodes])
    freshness.note_listed(JOBS, 0.0)
    assert freshness.serves("a")
    assert not freshness.settled, "it is waited for"
    freshness.note_unlisted(nodes, "nodes is forbidden")
    assert freshness.settled
    assert freshness.serves("a")
    assert freshness.problems(1000.0) == []
    assert freshness.notes == ["Node can't be listed: nodes is forbidden"]
    freshness.note_unlisted(JOBS)
    assert not freshness.settled, "that it fails says nothing about other sources"
    freshness.note_listed(JOBS, 0.0)
    freshness.note_listed(nodes, 1.0)
    assert (freshness.serves("a"), freshness.notes) == (True, [])
    assert freshness.problems(1.0 + SILENCE_SECONDS + 1.0) == ["Node watch silent for 241 s"]


def test_a_kind_that_is_not_listed_in_many_namespaces_is_named_once() -> None:
    freshness = Freshness([Source("Pod", f"ns-{n}") for n in range(1000)], bookmarked=[])
    assert freshness.problems(0.0) == ["Pod not yet listed"]


def test_a_namespace_is_served_while_all_its_kinds_have_been_listed_whatever_others_do() -> None:
    sources = {name: [Source("RLJob", name), Source("Pod", name)] for name in ("a", "b")}
    freshness = Freshness([*sources["a"], *sources["b"]], bookmarked=[])
    for source in sources["a"]:
        freshness.note_listed(source, 0.0)
    assert not freshness.settled
    freshness.note_unlisted(sources["b"][1], "pods is forbidden")
    freshness.note_unlisted(sources["b"][1], "pods is still forbidden")
    assert freshness.settled
    assert (freshness.serves("a"), freshness.serves("b")) == (True, False)
    assert freshness.problems(0.0) == []
    assert freshness.notes == ["Pod in namespace b can't be listed: pods is still forbidden"]
    freshness.note_unlisted(sources["a"][0], "gone")
    assert freshness.problems(0.0) == ["no namespace is served"]
    freshness.note_listed(sources["b"][1], 0.0)
    freshness.note_listed(sources["b"][0], 0.0)
    assert (freshness.serves("a"), freshness.serves("b")) == (False, True)
    assert freshness.problems(0.0) == []


def test_silence_counts_only_for_streams_that_have_bookmarks() -> None:
    freshness = fresh()
    freshness.note_heard(PODS, 100.0)
    assert freshness.problems(100.0 + SILENCE_SECONDS) == []
    (problem,) = freshness.problems(101.0 + SILENCE_SECONDS)
    assert "Pod watch silent" in problem
    assert not freshness.dead(10_000.0)  # the API server may just be away


def test_an_object_owed_for_too_long_shows_that_the_watch_is_dead() -> None:
    freshness = fresh()
    freshness.note_newer(JOB, 7, 10.0)
    assert freshness.owes(JOBS)
    assert not freshness.owes(PODS)
    freshness.note_heard(PODS, 300.0)
    assert freshness.problems(10.0 + LAG_SECONDS) == []
    freshness.note_newer(JOB, 9, 60.0)  # the next re-list doesn't restart the clock
    (problem,) = freshness.problems(11.0 + LAG_SECONDS)
    assert "RLJob watch is dead" in problem
    assert not freshness.dead(10.0 + DEAD_SECONDS)
    assert freshness.dead(11.0 + DEAD_SECONDS)
    freshness.note_reached(JOB, 8)
    assert freshness.owes(JOBS)
    freshness.note_reached(JOB, 9)
    assert not freshness.owes(JOBS)
    assert not freshness.dead(10_000.0)


def test_the_feed_settles_debts_by_events_and_deletions() -> None:
    changes: list[Change] = []
    freshness = fresh()
    feed = Feed(Cache(), freshness, ServerClock(), changes.append, clock=lambda: 5.0)
    job = {
        "apiVersion": "g/v1",
        "kind": "RLJob",
        "metadata": {"namespace": "a", "name": "x", "uid": "u", "resourceVersion": "7"},
    }
    feed.newer(JOB, 7)
    feed.put(job)
    assert not freshness.owes(JOBS)
    feed.newer(JOB, 9)
    feed.remove({**job, "metadata": {**job["metadata"], "resourceVersion": "9"}})  # type: ignore[dict-item]
    assert not freshness.owes(JOBS)
    assert [(change.old is None, change.new is None) for change in changes] == [(True, False), (False, True)]


def test_an_object_that_is_gone_before_it_came_is_owed_no_more() -> None:
    freshness = fresh()
    feed = Feed(Cache(), freshness, ServerClock(), lambda _: None, clock=lambda: 5.0)
    feed.newer(JOB, 7)
    feed.newer(ObjectKey("Pod", "a", "p"), 8)
    feed.newer(ObjectKey("Pod", "a", "q"), 12)
    feed.listed(PODS, {}, 10)
    assert freshness.owes(PODS)  # q is newer than the list
    feed.absent(PODS, {}, 12)
    assert not freshness.owes(PODS)
    assert freshness.owes(JOBS)
    feed.absent(JOBS, {JOB: 11}, 12)
    assert freshness.owes(JOBS)
    feed.absent(JOBS, {}, 13)
    assert not freshness.owes(JOBS)
    assert not freshness.dead(10_000.0)


def test_a_full_list_removes_what_it_lacks_but_nothing_newer() -> None:
    cache = Cache()
    feed = Feed(cache, fresh(), ServerClock(), lambda _: None, clock=lambda: 5.0)
    for name, version in (("p", 3), ("q", 4), ("r", 12)):
        metadata = {
            "namespace": "a",
            "name": name,
            "resourceVersion": str(version),
            "labels": {"longboat.dev/job": "x"},
        }
        feed.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    feed.listed(PODS, {ObjectKey("Pod", "a", "p"): 10}, 10)
    assert {key.name for key in cache.versions(PODS)} == {"p", "r"}


def test_a_job_that_is_replaced_takes_the_memory_of_its_secrets_along() -> None:
    cache = Cache()
    feed = Feed(cache, fresh(), ServerClock(), lambda _: None, clock=lambda: 5.0)

    def tell(uid: str, version: int) -> None:
        metadata = {"namespace": "a", "name": "x", "uid": uid, "resourceVersion": str(version)}
        feed.put({"apiVersion": "g/v1", "kind": "RLJob", "metadata": metadata})

    tell("first", 1)
    metadata = {"namespace": "a", "name": "x-token", "labels": {"longboat.dev/job": "x"}}
    cache.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    tell("first", 2)
    assert set(cache.children(JobKey("a", "x"))["Secret"]) == {"x-token"}
    tell("second", 3)
    assert cache.children(JobKey("a", "x"))["Secret"] == {}


def test_when_a_process_is_ready_and_when_alive() -> None:
    well = judge([], watch_dead=False, stalled_seconds=0.0, leading=True)
    assert not well.not_ready
    assert not well.not_alive
    # Without leadership nobody works the queue off, and that is right.
    standby = judge([], watch_dead=False, stalled_seconds=1e6, leading=False)
    assert not standby.not_ready
    late = judge([], watch_dead=False, stalled_seconds=PLANS_LATE_SECONDS + 1, leading=True)
    assert late.not_ready
    assert not late.not_alive
    assert judge([], watch_dead=False, stalled_seconds=PLANS_STUCK_SECONDS + 1, leading=True).not_alive
    silent = judge(["Pod watch silent for 300 s"], watch_dead=False, stalled_seconds=0.0, leading=True)
    assert silent.not_ready == ("Pod watch silent for 300 s",)
    assert not silent.not_alive
    assert judge(["dead"], watch_dead=True, stalled_seconds=0.0, leading=False).not_alive
