"""Measurements stand in the log among the events, in one order with them, and change nothing."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds.events import LogEntry
from longboat_runtime.rounds.measurements import (
    CpusAsked,
    CpusGranted,
    Measurement,
    PodDrained,
    PodsChanged,
    PoolGrading,
    Reshaped,
    RoundGraded,
    RoundMeasured,
    ShapesAllowed,
    WeightsUnreachable,
)
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from tests.rounds.world import World

OF_A_ROUND = (
    RoundMeasured(1, RoundKind.SHORT, 1, 2, 0, 0, 100, 8, 0, 0.5),
    RoundGraded(1, {"a": PoolGrading(1, 1, 0.5, 0, 0.0, ((0.0, 1),))}),
)
OTHERS = (
    Reshaped(2, "preemptions", {"start": 0.5}),
    ShapesAllowed((1, 2), 1, "/profile.json"),
    PodsChanged(("pod-1",), ("pod-0",)),
    WeightsUnreachable("engine-0: bucket 1 is gone"),
    PodDrained("pod-1", 1.5),
    CpusAsked({"a": 1.0}, "why"),
    CpusGranted({"a": 1.0}),
)


def test_there_is_an_example_of_each() -> None:
    assert {*map(type, OF_A_ROUND + OTHERS)} == {*get_args(Measurement)}


@given(st.lists(st.sampled_from([None, *OF_A_ROUND, *OTHERS]), max_size=12))
def test_they_have_one_order_with_events_and_leave_the_ledger_as_it_is(course: list[Measurement | None]) -> None:
    """None lets a sample finish, of which policies decide."""
    world, alone = World(Synchronous(4, 2), 2), World(Synchronous(4, 2), 2)
    entries = []
    for each in (world, alone):
        each.start()
        each.publish()
    for measurement in course:
        if measurement is None:
            for each in (world, alone):
                if each.drawn:
                    each.finish(min(each.drawn))
            continue
        before = to_snapshot(world.ledger)
        entry = world.loop.entry(measurement)
        assert entry is not None
        assert LogEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry
        assert to_snapshot(world.ledger) == before
        entries.append(entry)
    log = sorted([*world.log, *entries], key=lambda entry: entry.seq)
    assert [entry.seq for entry in log] == [*range(1, len(log) + 1)]
    assert [event.body for event in world.log] == [event.body for event in alone.log]


@pytest.mark.parametrize("measurement", OF_A_ROUND)
def test_that_of_a_round_which_is_over_has_no_effect(measurement: Measurement) -> None:
    world = World(Synchronous(4, 2), 2)
    world.start()
    before = len(world.log)
    assert world.loop.entry(measurement) is None
    world.publish()
    assert world.log[before].seq == before + 1
    assert world.loop.entry(measurement) is not None
