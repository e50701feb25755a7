from __future__ import annotations

import pytest

from longboat_runtime.rounds import events
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.timeline.bars import Timeline, choose
from longboat_runtime.timeline.fold import fold
from tests.timeline.history import EPOCH, long_round, numbered, short_round, start


def rounds(kinds: str, *, last_open: bool = False) -> Timeline:
    """One round a letter, S or L, of a second each."""
    moments = []
    for number, letter in enumerate(kinds, 1):
        kind = RoundKind.LONG if letter == "L" else RoundKind.SHORT
        moments += [(number, events.RoundOpened(number, kind, number - 1)), (number + 0.5, events.RoundClosed(number))]
    return fold(numbered(moments[:-1] if last_open else moments))


def numbers(timeline: Timeline) -> list[int]:
    return [round_.number for round_ in timeline.rounds]


@pytest.mark.parametrize(
    ("kinds", "last_open", "expected"),
    [
        ("SSLSSSLSS", False, [4, 5, 6, 7]),
        ("SSLSSSL", True, [1, 2, 3]),
        ("SSLSLLL", False, [4, 5]),
        ("SSSSSSSS", False, [3, 4, 5, 6, 7, 8]),
        ("SSSSSSSSLS", False, [5, 6, 7, 8, 9, 10]),
        ("LLL", False, [1, 2, 3]),
        ("S", True, [1]),
    ],
)
def test_the_last_whole_period_or_six_rounds(kinds: str, last_open: bool, expected: list[int]) -> None:
    assert numbers(choose(rounds(kinds, last_open=last_open))) == expected


@pytest.mark.parametrize(("wanted", "expected"), [("2-4", [2, 3, 4]), ("3", [3]), (" 1-1 ", [1])])
def test_rounds_may_be_asked_for(wanted: str, expected: list[int]) -> None:
    assert numbers(choose(rounds("SSLSS"), wanted)) == expected


@pytest.mark.parametrize("wanted", ["0-3", "4-9", "17"])
def test_rounds_that_are_not_there_are_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match="the log has rounds 1 to 5; give a range of these"):
        choose(rounds("SSLSS"), wanted)


@pytest.mark.parametrize("wanted", ["", "a-b", "3-", "4-2", "-1", "1,2"])
def test_what_is_no_range_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match="such as 3-7"):
        choose(rounds("SSLSS"), wanted)


def test_rounds_bring_what_the_trainer_did_for_them() -> None:
    whole = fold(numbered([*start(), *short_round(), *long_round()]))
    first, second = choose(whole, "1"), choose(whole, "2")
    assert [span.step for span in first.spans] == [1, 1]
    assert [span.step for span in second.spans] == [2, 2]
    assert (first.start - EPOCH, first.end - EPOCH) == (1, 6.5)
    assert (second.start - EPOCH, second.end - EPOCH) == (7, 12.5)
