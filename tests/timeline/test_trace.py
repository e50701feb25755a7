from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest

from longboat_runtime.rounds import events, measurements
from longboat_runtime.timeline.bars import choose
from longboat_runtime.timeline.fold import fold
from longboat_runtime.timeline.trace import trace
from tests.timeline.history import EPOCH, long_round, numbered, short_round, start


@pytest.fixture
def made() -> dict[str, Any]:
    timeline = choose(fold(numbered([*start(), *short_round(), *long_round()])), "1-2")
    return json.loads(json.dumps(trace(timeline)))


def complete(made: dict[str, Any], category: str | None = None) -> list[dict[str, Any]]:
    return [event for event in made["traceEvents"] if event["ph"] == "X" and category in (None, event["cat"])]


def names(made: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    found = [event for event in made["traceEvents"] if event["name"] == what]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in found}


def test_every_event_has_its_time_and_its_place(made: dict[str, Any]) -> None:
    threads = names(made, "thread_name")
    for event in complete(made):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert (event["pid"], event["tid"]) in threads
    assert {event["ph"] for event in made["traceEvents"]} == {"X", "M"}
    assert made["otherData"]["start"] == EPOCH + 1


def test_events_of_a_thread_never_overlap(made: dict[str, Any]) -> None:
    key = lambda event: (event["pid"], event["tid"], event["ts"])  # noqa: E731
    for _, thread in groupby(sorted(complete(made), key=key), key=lambda event: key(event)[:2]):
        for one, other in pairwise(thread):
            assert one["ts"] + one["dur"] <= other["ts"]


def test_each_engine_is_a_process_and_so_is_the_driver(made: dict[str, Any]) -> None:
    processes = list(names(made, "process_name").values())
    assert processes == ["driver", "e/0", "e/2", "e/10", "not finished (engine not recorded)"]


def test_a_sample_tells_its_tokens_and_its_fate(made: dict[str, Any]) -> None:
    found = {(event["args"]["sample"], event["ts"]): event for event in complete(made, "sample")}
    assert len(found) == 15
    event = found["e0r0a0s0", 1_000_000]
    assert (event["name"], event["dur"]) == ("kept", 1_000_000)
    assert event["args"] == {"sample": "e0r0a0s0", "tokens": 7, "fate": "kept"}


def test_a_sample_tells_the_domain_that_it_was_drawn_from() -> None:
    history = [*start(), *short_round()]
    of_math = [
        (time, replace(body, domain="math") if isinstance(body, events.Drawn) else body) for time, body in history
    ]
    made = trace(fold(numbered(of_math)))
    assert {event["args"]["domain"] for event in complete(made, "sample")} == {"math"}


def test_the_driver_shows_rounds_training_and_publication(made: dict[str, Any]) -> None:
    threads = {tid: name for (pid, tid), name in names(made, "thread_name").items() if pid == 1}
    shown = [
        (threads[event["tid"]], event["name"], event["ts"] / 1e6, event["dur"] / 1e6)
        for event in complete(made)
        if event["pid"] == 1
    ]
    assert shown == [
        ("rounds", "round 1 (Short)", 0, 4),
        ("rounds", "round 2 (Long)", 6, 4),
        ("train", "train 1", 4, 1),
        ("publish", "publish 1", 5, 0.5),
        ("train", "train 2", 10, 1),
        ("publish", "publish 2", 11, 0.5),
    ]
    assert complete(made, "round")[0]["args"]["deferred"] == 1


def test_pools_are_counters_of_the_driver() -> None:
    graded = measurements.PoolGrading(7, 7, 1.0, 3, 0.5, ((0.0, 0), (1.5, 7), (4.0, 0)))
    moments = [*start(), (0.5, measurements.CpusGranted({"code": 1.5})), *short_round()]
    timeline = choose(fold(numbered([*moments, (5, measurements.RoundGraded(1, {"code": graded}))])), "1")
    found = [event for event in trace(timeline)["traceEvents"] if event["ph"] == "C"]
    assert [(event["name"], event["ts"] / 1e6, list(event["args"].values())) for event in found] == [
        ("code: grades to do", 0, [0]),
        ("code: grades to do", 1.5, [7]),
        ("code: grades to do", 4, [0]),
        ("code: CPUs", 0, [1.5]),
    ]
