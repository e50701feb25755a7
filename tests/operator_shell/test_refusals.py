"""Refusals are told, and asked again ever more rarely."""

from __future__ import annotations

from longboat_operator.refusals import Refusals
from longboat_operator.schedule import LONGEST_BACKOFF_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


POD, SERVICE = ("Pod", "x"), ("Service", "x")


def test_each_no_doubles_the_wait_and_a_yes_ends_it() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    waits = []
    for _ in range(12):
        assert not refusals.waits(POD)
        refusals.note(POD, "exceeded quota")
        wait = refusals.next_seconds()
        assert wait is not None
        assert refusals.waits(POD)
        clock.now += wait
        waits.append(wait)
    assert waits[1] == 2 * waits[0]
    assert waits[-1] == LONGEST_BACKOFF_SECONDS
    refusals.clear(POD)
    assert refusals.by_name() == {}
    refusals.note(POD, "exceeded quota")
    assert refusals.next_seconds() == waits[0]


def test_kinds_of_one_name_are_told_together() -> None:
    refusals = Refusals(Clock())
    refusals.note(POD, "exceeded quota")
    refusals.note(SERVICE, "belongs to something else")
    assert refusals.by_name() == {"x": "Pod x: exceeded quota; Service x: belongs to something else"}


def test_what_is_no_longer_asked_for_is_forgotten() -> None:
    refusals = Refusals(Clock())
    refusals.note(POD, "exceeded quota")
    refusals.keep_only({SERVICE})
    assert refusals.by_name() == {}
    assert not refusals.waits(POD)


def test_one_whose_time_has_come_but_stands_behind_another_doesnt_ask_for_a_turn() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refusals.note(POD, "no")
    clock.now = 10.0
    refusals.note(SERVICE, "no")
    wait = refusals.next_seconds()
    assert wait is not None
    assert wait > 0
    clock.now = 100.0
    assert refusals.next_seconds() is None
