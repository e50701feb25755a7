"""What a plan is told of other jobs that wait for room, and whom a change of one of them wakes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from longboat_operator.model import Contention, JobKey
from longboat_operator.reading.waiting import half_placed_rank, is_refused_by_quota, keeps_unplaced_pods
from longboat_operator.watch.cache import Cache, key_of
from longboat_operator.watch.waiting import WaitingJobs

SINCE = "2026-01-01T00:00:00Z"
REFUSED = {"type": "Scheduled", "status": "False", "reason": "QuotaExceeded"}
STARTING = {"type": "Scheduled", "status": "False", "reason": "PodsStarting"}
FAILED = {"type": "Failed", "status": "True", "reason": "DriverFailed"}
NAMES = ("a", "b", "c", "d")


def job(
    name: str = "a", placement: dict[str, Any] | None = None, *conditions: dict[str, Any], **metadata: Any
) -> dict[str, Any]:
    about = {"namespace": "n", "name": name, "uid": name, "creationTimestamp": SINCE, **metadata}
    return {
        "kind": "RLJob",
        "metadata": about,
        "status": {"placement": placement or {}, "conditions": list(conditions)},
    }


def waiting(placed: int, **more: Any) -> dict[str, Any]:
    return {"minimum": 5, "placed": placed, "since": SINCE, **more}


def test_who_is_half_placed_and_in_which_order() -> None:
    assert half_placed_rank(job()) is None
    assert half_placed_rank(job("a", waiting(0))) is None
    assert half_placed_rank(job("a", {"minimum": 5, "placed": 5})) is None
    assert half_placed_rank(job("a", waiting(2, releaseTime=SINCE))) is None
    assert half_placed_rank(job("a", waiting(2), FAILED)) is None
    assert half_placed_rank(job("a", waiting(2), deletionTimestamp=SINCE)) is None
    urgent = job("z", waiting(2, priority=10), creationTimestamp="2026-02-01T00:00:00Z")
    older = job("y", waiting(2), creationTimestamp="2025-01-01T00:00:00Z")
    ordinary = [job("a", waiting(1)), job("b", waiting(4))]
    below = job("c", waiting(2, priority=-1), creationTimestamp="2020-01-01T00:00:00Z")
    ranks = [half_placed_rank(each) for each in (urgent, older, *ordinary, below)]
    assert all(ranks)
    assert ranks == sorted(ranks, key=lambda rank: rank or (0, "", ""))


def test_who_keeps_pods_without_nodes_and_whom_a_quota_refuses() -> None:
    assert keeps_unplaced_pods(job("a", waiting(0)))
    assert not keeps_unplaced_pods(job("a", waiting(1)))
    assert not keeps_unplaced_pods(job("a", {"minimum": 5, "placed": 0})), "it has no pods"
    assert not keeps_unplaced_pods(job("a", waiting(0, releaseTime=SINCE)))
    assert keeps_unplaced_pods(job("a", {"minimum": 5, "placed": 0, "retryTime": SINCE})), "gated ones are left"
    assert not keeps_unplaced_pods(job("a", {"minimum": 5, "placed": 0, "retryTime": SINCE}, FAILED))
    assert is_refused_by_quota(job("a", waiting(2), REFUSED))
    assert is_refused_by_quota(job("a", {"minimum": 5, "placed": 0}, REFUSED)), "it has no pods"
    assert not is_refused_by_quota(job("a", waiting(2), STARTING))
    assert not is_refused_by_quota(job("a", waiting(2), REFUSED, FAILED))
    assert not is_refused_by_quota(job("a", None, REFUSED)), "rounds run"
    assert not is_refused_by_quota(job("a", {"minimum": 5, "placed": 5, "startSince": SINCE}, REFUSED))


PLACEMENTS = st.one_of(
    st.none(),
    st.builds(waiting, st.integers(0, 5), priority=st.integers(-2, 2)),
    st.builds(waiting, st.integers(0, 5), releaseTime=st.just(SINCE)),
    st.just({"minimum": 5, "placed": 0, "retryTime": SINCE}),
)
JOBS = st.one_of(
    st.none(),
    st.builds(
        lambda placement, conditions, created: job("", placement, *conditions, creationTimestamp=created),
        PLACEMENTS,
        st.lists(st.sampled_from([REFUSED, FAILED]), max_size=2),
        st.sampled_from([SINCE, "2025-01-01T00:00:00Z"]),
    ),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["n", "m"]), JOBS), max_size=30))
def test_the_index_says_what_a_look_at_all_jobs_would(changes: list[tuple[str, str, dict[str, Any] | None]]) -> None:
    index, jobs = WaitingJobs(), dict[JobKey, dict[str, Any]]()
    for name, namespace, new in changes:
        key = JobKey(namespace, name)
        told = {each: besides(jobs, each) for each in jobs}
        old = jobs.pop(key, None)
        if new is not None:
            uid = f"{namespace}-{name}"
            jobs[key] = {**new, "metadata": {**new["metadata"], "namespace": namespace, "name": name, "uid": uid}}
        index.note(key, jobs.get(key))
        for each in [*jobs, JobKey("n", "new")]:
            assert index.besides(each) == besides(jobs, each)
        learns = {
            each for each, job in jobs.items()
            if each != key and keeps_unplaced_pods(job) and besides(jobs, each).quota_refuses and not told[each].quota_refuses
        }  # fmt: skip
        assert index.disturbed_by(key, old, jobs.get(key)) == learns


def besides(jobs: dict[JobKey, dict[str, Any]], key: JobKey) -> Contention:
    """The summary, by the rule."""
    others = {each: job for each, job in jobs.items() if each != key}
    ranks = [rank for job in others.values() if (rank := half_placed_rank(job))]
    refused = [each for each, job in others.items() if each.namespace == key.namespace and is_refused_by_quota(job)]
    return Contention(min(ranks, default=None), bool(refused))


def test_the_cache_keeps_it() -> None:
    cache = Cache()
    half = job("half", waiting(3), resourceVersion="1")
    cache.put(half)
    assert cache.contention(JobKey("n", "a")).first_half_placed == half_placed_rank(half)
    assert cache.contention(JobKey("n", "half")) == Contention()
    kept = job("kept", waiting(0), resourceVersion="2")
    cache.put(kept)
    change = cache.put(job("refused", waiting(0), REFUSED, resourceVersion="3"))
    assert change
    assert cache.disturbed_by(change) == {JobKey("n", "kept")}
    again = cache.put(job("refused", waiting(0), REFUSED, resourceVersion="4"))
    assert again
    assert not cache.disturbed_by(again), "it knows"
    cache.remove(key_of(half), 9)
    assert cache.contention(JobKey("n", "a")) == Contention(quota_refuses=True)
