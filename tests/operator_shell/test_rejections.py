"""Rejections are told, and asked again ever more rarely."""

from __future__ import annotations

from longboat_operator.rejections import LASTING_SECONDS, UNANSWERED, Rejections
from longboat_operator.schedule import LONGEST_BACKOFF_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


POD, SERVICE = ("Pod", "x"), ("Service", "x")


def test_each_no_doubles_the_wait_and_a_yes_ends_it() -> None:
    clock = Clock()
    rejections = Rejections(clock)
    waits = []
    for _ in range(12):
        assert not rejections.waits(POD)
        rejections.note(POD, "exceeded quota")
        wait = rejections.next_seconds()
        assert wait is not None
        assert rejections.waits(POD)
        clock.now += wait
        waits.append(wait)
    assert waits[1] == 2 * waits[0]
    assert waits[-1] == LONGEST_BACKOFF_SECONDS
    rejections.clear(POD)
    assert rejections.by_name() == {}
    rejections.note(POD, "exceeded quota")
    assert rejections.next_seconds() == waits[0]


def test_kinds_of_one_name_are_told_together() -> None:
    rejections = Rejections(Clock())
    rejections.note(POD, "exceeded quota")
    rejections.note(SERVICE, "belongs to something else")
    assert rejections.by_name() == {"x": "Pod x: exceeded quota; Service x: belongs to something else"}


def test_what_is_no_longer_asked_for_is_forgotten() -> None:
    rejections = Rejections(Clock())
    rejections.note(POD, "exceeded quota")
    rejections.keep_only({SERVICE})
    assert rejections.by_name() == {}
    assert not rejections.waits(POD)


def test_one_whose_time_has_come_but_stands_behind_another_doesnt_ask_for_a_turn() -> None:
    clock = Clock()
    rejections = Rejections(clock)
    rejections.note(POD, "no")
    clock.now = 10.0
    rejections.note(SERVICE, "no")
    wait = rejections.next_seconds()
    assert wait is not None
    assert wait > 0
    clock.now = 100.0
    assert rejections.next_seconds() is None


def test_one_whose_time_comes_while_its_plan_is_carried_out_asks_for_a_turn_at_once() -> None:
    clock = Clock()
    rejections = Rejections(clock)
    rejections.note(POD, "no")
    clock.now += (rejections.next_seconds() or 0.0) - 0.001
    assert rejections.waits(POD)
    clock.now += 0.002
    assert rejections.next_seconds() == 0.0
    assert rejections.next_seconds() is None, "it was told so"


def test_what_fails_for_long_is_told_until_it_succeeds_and_asked_ever_more_rarely() -> None:
    clock = Clock()
    rejections = Rejections(clock)
    assert not rejections.note_unanswered(POD, "the webhook is down")
    assert not rejections.waits(POD)
    assert rejections.by_name() == {}
    clock.now = LASTING_SECONDS
    assert rejections.by_name() == {"x": f"Pod x: {UNANSWERED}: the webhook is down"}
    assert rejections.note_unanswered(POD, "the webhook is down")
    assert rejections.waits(POD)
    assert rejections.next_seconds()
    rejections.clear(POD)
    assert rejections.by_name() == {}
    assert not rejections.note_unanswered(POD, "the webhook is down"), "a later failure has to last too"


def test_a_message_that_differs_in_numbers_alone_stays_as_it_is() -> None:
    """Each other message would be a write of the status."""
    clock = Clock()
    rejections = Rejections(clock)
    rejections.note_unanswered(POD, "read from 10.0.0.1:40001: connection reset after 11ms")
    clock.now = LASTING_SECONDS
    rejections.note_unanswered(POD, "read from 10.0.0.1:40702: connection reset after 12ms")
    assert rejections.by_name()["x"].endswith("read from 10.0.0.1:40001: connection reset after 11ms")
    rejections.note_unanswered(POD, "deadline exceeded")
    assert rejections.by_name()["x"].endswith("deadline exceeded")


def test_a_refusal_is_told_until_the_silence_after_it_has_lasted() -> None:
    clock = Clock()
    rejections = Rejections(clock)
    rejections.note(POD, "exceeded quota")
    rejections.note_unanswered(POD, "no answer")
    assert rejections.by_name() == {"x": "Pod x: exceeded quota"}
    clock.now = LASTING_SECONDS
    assert rejections.by_name() == {"x": f"Pod x: {UNANSWERED}: no answer"}
    rejections.note(POD, "exceeded quota")
    assert rejections.by_name() == {"x": "Pod x: exceeded quota"}
