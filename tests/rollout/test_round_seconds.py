"""What a round asked of its engines, and how long it takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.round_seconds import (
    COMPUTED,
    RoundCost,
    Work,
    round_cost,
    round_seconds,
    typical_length,
    work_of,
)
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.events import Responses

# A step takes 0.1 s whatever runs, and prompts nothing.
STEADY = EngineModel(10**9, 0.0, (1, 1000), (1, 10_000), ((0.1, 0.1), (0.1, 0.1)))
LENGTHS = st.lists(st.integers(1, 500), max_size=40).map(lambda of: tuple(sorted(of)))


def test_a_round_ends_once_enough_responses_have_ended_on_whichever_engine() -> None:
    lengths = (1, 1, 1, 1, 100, 100, 100, 100)
    assert round_seconds(STEADY, 4, 10, Work(8, 4, 5, lengths)) == pytest.approx(0.1), "however they are dealt"
    assert round_seconds(STEADY, 4, 10, Work(8, 5, 5, lengths)) == pytest.approx(10.0)
    assert round_seconds(STEADY, 8, 10, Work(8, 8, 5, lengths)) == pytest.approx(10.0)


def test_engines_have_as_many_responses_but_not_the_same_work() -> None:
    """One at a time each: eight of ten long ones on an even deal, more where chance has put more of them together."""
    work = Work(40, 40, 5, (1,) * 20 + (100,) * 20)
    assert 50 + 0.5 < round_seconds(STEADY, 4, 1, work) <= 100.0


def test_preemptions_are_those_of_all_engines() -> None:
    small = replace(STEADY, kv_tokens=150)
    one = round_cost(small, 1, 10, Work(3, 3, 10, (80, 80, 80)))
    assert one.preemptions > 0
    assert round_cost(small, 5, 10, Work(15, 15, 10, (80,) * 15)) == RoundCost(one.seconds, 5 * one.preemptions)


@pytest.mark.parametrize("engines", [1, 16])
def test_a_part_of_a_large_round_stands_for_all(engines: int) -> None:
    """With the longest response in it."""
    most = 4 * COMPUTED
    work = Work(most, most, 5, tuple(range(1, 513)))
    assert round_seconds(STEADY, engines, 10**6, work) == pytest.approx(51.2)


@given(LENGTHS, LENGTHS, LENGTHS, LENGTHS)
def test_stopped_responses_would_have_become_longer(
    ended: tuple[int, ...], stopped: tuple[int, ...], spared: tuple[int, ...], known: tuple[int, ...]
) -> None:
    samples = len(ended) + len(stopped) + len(spared)
    responses = Responses(samples, len(ended), ended, stopped, len(spared), spared)
    work = work_of(responses, 5.0, known, 600)
    assert (work.samples, work.completed, len(work.lengths)) == (samples, len(ended) + len(spared), samples)
    at_least = sorted([*ended, *spared, *(tokens + 1 for tokens in stopped)])
    assert all(length >= least for length, least in zip(work.lengths, at_least, strict=True))
    assert max(work.lengths, default=0) <= 600


def test_what_waited_when_the_round_ended_is_like_what_ran() -> None:
    """Of the six that ran, three had ended at 30 tokens: as many of the nine that never began will have, or one more."""
    responses = Responses(15, 3, (10, 20, 30), (0,) * 9 + (30,) * 3)
    lengths = work_of(responses, 5.0, (70, 80, 90), 100).lengths
    assert sum(length <= 30 for length in lengths) == 3 + 5
    assert {length for length in lengths if length > 30} == {70, 80, 90}
    never = work_of(Responses(12, 6, (10, 10, 20, 20, 30, 30), (0,) * 6), 5.0, (), 100)
    assert {3 <= never.lengths.count(length) <= 5 for length in (10, 20, 30)} == {True}
    assert sum(never.lengths.count(length) for length in (10, 20, 30)) == 12


def test_the_typical_length_is_that_by_which_half_have_ended() -> None:
    assert typical_length(Responses(5, 5, (1, 2, 3, 4, 5))) == 3
    assert typical_length(Responses(8, 4, (1, 2, 3, 4), (9, 9, 9, 9))) == 4
    assert typical_length(Responses(9, 2, (1, 2), (9,) * 7)) == 2, "the longest that is known"
    assert typical_length(Responses(2, 0, (), (9, 9))) == 0
