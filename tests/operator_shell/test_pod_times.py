"""Times in the status of a pod, which other machines wrote, as they stand in the cache."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longboat_operator.reading.terminations import container_statuses, terminations
from longboat_operator.reading.times import moment, stamp
from longboat_operator.watch.cache import Cache, ObjectKey
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.pod_times import with_server_times
from longboat_operator.watch.wakes import wakes_job
from tests.operator_shell.test_clock import BEGIN, HOUR, OFFSETS, Server, header

KEY = ObjectKey("Pod", "a", "p")


def pod(node_ahead: timedelta, version: int = 1, uid: str = "u", **seconds: float | None) -> dict[str, Any]:
    """A pod of a node with such a clock, as of the seconds: it is not ready since `unready`, its containers ended at `a` and `b`.

    The API server says that its status was written at `written`.
    """
    at = {
        name: stamp(BEGIN + node_ahead + timedelta(seconds=when)) for name, when in seconds.items() if when is not None
    }
    ends = [
        {"name": name, "restartCount": 1, "lastState": {"terminated": {"exitCode": 1, "finishedAt": at[name]}}}
        for name in ("a", "b")
        if name in at
    ]
    written = seconds.get("written")
    managed = [{"subresource": "status", "time": stamp(BEGIN + timedelta(seconds=written))}] if written else []
    unready = [{"type": "Ready", "status": "False", "lastTransitionTime": at["unready"]}] if "unready" in at else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "a", "name": "p", "uid": uid, "resourceVersion": str(version), "managedFields": managed,
        },
        "status": {"conditions": unready, "containerStatuses": ends},
    }  # fmt: skip


class Operator:
    """An operator that has the pod in its cache."""

    def __init__(self) -> None:
        self.server = Server()
        self.cache = Cache()
        self.feed = Feed(self.cache, Freshness([], []), self.server.clock, lambda _: None)

    def sees(self, obj: dict[str, Any], passed: float) -> dict[str, Any]:
        self.server.passed = passed
        self.server.clock.note(header(self.server.now))
        self.feed.put(obj)
        kept: Any = self.cache.get(KEY)
        return kept

    @staticmethod
    def unready(kept: dict[str, Any]) -> float:
        return (moment(kept["status"]["conditions"][0]["lastTransitionTime"]) - BEGIN).total_seconds()


@given(OFFSETS, st.integers(0, 100), st.lists(st.integers(1, 100), max_size=5))
def test_what_a_pod_says_of_the_present_counts_from_when_it_was_first_seen(
    node_ahead: timedelta, late: int, silences: list[int]
) -> None:
    operator = Operator()
    now = 200.0 + late
    kept = operator.sees(pod(node_ahead, unready=200), now)
    assert operator.unready(kept) == now
    for number, silence in enumerate(silences):
        before, kept = kept, operator.sees(pod(node_ahead, unready=200, version=2 + number), now + silence)
        assert operator.unready(kept) == now, "listed again, it is no other time"
        assert not wakes_job(before, kept)
    assert operator.unready(operator.sees(pod(node_ahead, unready=2000, version=20), 2000)) == 2000, "another one"
    assert operator.unready(operator.sees(pod(node_ahead, unready=2000, version=21), 3000)) == 2000
    assert operator.unready(operator.sees(pod(node_ahead, uid="v", unready=2000, version=22), 3000)) == 3000, (
        "another pod"
    )
    assert operator.unready(Operator().sees(pod(node_ahead, unready=200), 4000)) == 4000, (
        "a restarted operator is patient"
    )


@given(OFFSETS, st.permutations([100, 160, 500]), st.integers(0, 20), st.integers(0, 10_000))
def test_ends_keep_their_order_and_distance_whenever_they_are_seen(
    node_ahead: timedelta, ends: list[int], written: int, late: int
) -> None:
    a, b, _ = ends
    last = max(a, b) + written
    live, restarted = Operator(), Operator()
    live.sees(pod(node_ahead, a=a, written=a + 1), a + 1)
    if b > a:
        seen_live = live.sees(pod(node_ahead, version=2, a=a, b=b, written=last), last)
        assert [end.container for end in terminations(container_statuses(seen_live))] == ["b", "a"]
    seen = restarted.sees(pod(node_ahead, a=a, b=b, written=last), last + late)
    newest, older = terminations(container_statuses(seen))
    assert newest.container == ("a" if a > b else "b")
    assert moment(newest.time or "") - moment(older.time or "") == timedelta(seconds=abs(a - b))
    assert moment(newest.time or "") == BEGIN + timedelta(seconds=last), "as the API server dates the last write"


def test_a_container_that_is_started_in_the_second_in_which_it_ended_ended_with_the_others() -> None:
    made = pod(timedelta(), a=100, b=100, written=101)
    made["status"]["containerStatuses"][1]["state"] = {"running": {"startedAt": stamp(BEGIN + timedelta(seconds=100))}}
    kept = Operator().sees(made, 5000)
    [one, other] = terminations(container_statuses(kept))
    assert one.time == other.time
    assert kept["status"]["containerStatuses"][1]["state"]["running"]["startedAt"] > str(one.time)


def test_times_of_any_year_are_read() -> None:
    ended = {"exitCode": 1, "startedAt": "0001-01-01T00:00:01Z", "finishedAt": "9999-12-31T23:59:59Z"}
    for state in ({"terminated": ended}, {"terminated": {**ended, "finishedAt": ended["startedAt"]}}):
        made = pod(HOUR)
        made["status"]["containerStatuses"] = [{"name": "a", "restartCount": 1, "lastState": state}]
        [end] = terminations(container_statuses(Operator().sees(made, 5)))
        assert end.time is not None


def test_an_end_whose_write_nobody_dates_happened_when_it_was_first_seen() -> None:
    [end] = terminations(container_statuses(with_server_times(pod(HOUR, a=5), None, BEGIN)))
    assert moment(end.time or "") == BEGIN


def test_times_that_are_missing_stay_missing() -> None:
    unknown = {"name": "a", "state": {"terminated": {"exitCode": 137, "startedAt": None, "finishedAt": None}}}
    made = {"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "Ready"}], "containerStatuses": [unknown]}}
    kept = with_server_times(made, None, BEGIN)
    assert kept["status"] == made["status"]
    assert kept["serverTimes"] == {}
    assert with_server_times({"metadata": {}}, None, BEGIN)["status"] == {}
