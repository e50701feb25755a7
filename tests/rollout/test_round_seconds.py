"""What a round asked of its engines, and how long it takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.round_seconds import COMPUTED, POINTS, Work, round_seconds, work_of
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.measurements import Responses, RoundWork

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


@pytest.mark.parametrize("engines", [1, 16])
def test_a_part_of_a_large_round_stands_for_all(engines: int) -> None:
    """With the longest response in it."""
    most = 4 * COMPUTED
    work = Work(most, most, 5, tuple(range(1, 513)))
    assert round_seconds(STEADY, engines, 10**6, work) == pytest.approx(51.2)


@given(LENGTHS, LENGTHS)
def test_stopped_responses_would_have_become_longer(ended: tuple[int, ...], stopped: tuple[int, ...]) -> None:
    samples = len(ended) + len(stopped)
    work = work_of(RoundWork(1.0, 5.0, Responses(samples, len(ended), ended, stopped)), 600)
    assert (work.samples, work.completed, len(work.lengths)) == (samples, len(ended), samples)
    at_least = sorted([*ended, *(tokens + 1 for tokens in stopped)])
    assert all(length >= least for length, least in zip(work.lengths, at_least, strict=True))
    assert max(work.lengths, default=0) <= 600


@given(LENGTHS, LENGTHS, st.integers(1, 50))
def test_many_responses_are_as_long_as_their_quantiles(
    ended: tuple[int, ...], stopped: tuple[int, ...], times: int
) -> None:
    samples = times * (len(ended) + len(stopped))
    lengths = work_of(RoundWork(1.0, 5.0, Responses(samples, times * len(ended), ended, stopped)), 600).lengths
    assert len(lengths) <= POINTS + 1
    if ended and not stopped:
        assert sum(lengths) / len(lengths) == pytest.approx(sum(ended) / len(ended), rel=0.1, abs=1)
        assert ended[0] <= lengths[0] <= lengths[-1] <= ended[-1]


ENGINE = EngineModel(10_000, 0.001, (1, 10), (100, 200), ((0.1, 0.1), (0.2, 0.2)))


def test_a_round_takes_its_prompts_and_the_steps_of_its_longest_response() -> None:
    assert round_seconds(ENGINE, 1, 10, Work(1, 1, 50, (20,))) == pytest.approx(0.05 + 20 * 0.1)
    assert round_seconds(ENGINE, 2, 10, Work(2, 2, 50, (10, 20))) == pytest.approx(0.05 + 20 * 0.1), "one each"
    both = 2 * 0.05 + 10 * (0.1 + 0.1 / 9) + 10 * 0.1
    assert round_seconds(ENGINE, 1, 10, Work(2, 2, 50, (10, 20))) == pytest.approx(both)
    one_by_one = 2 * 0.05 + 30 * 0.1
    assert round_seconds(ENGINE, 1, 1, Work(2, 2, 50, (10, 20))) == pytest.approx(one_by_one)
    assert round_seconds(ENGINE, 1, 10, Work(2, 1, 50, (10, 20))) == pytest.approx(both - 1.0), "the other is stopped"


def test_what_the_cache_cannot_hold_is_computed_again() -> None:
    small = replace(ENGINE, kv_tokens=130)
    work = Work(2, 2, 50, (40, 40))
    assert round_seconds(small, 1, 10, work) > round_seconds(ENGINE, 1, 10, work) + 0.05
    assert round_seconds(replace(ENGINE, kv_tokens=5), 1, 10, work) > 0, "one sequence always runs"


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.integers(60, 20_000),
    st.integers(1, 4),
    st.integers(1, 40),
)
def test_every_round_ends_and_more_cache_never_hurts_much(
    lengths: list[int], kv_tokens: int, engines: int, most: int
) -> None:
    work = Work(len(lengths), len(lengths), 50, tuple(sorted(lengths)))
    seconds = round_seconds(replace(ENGINE, kv_tokens=kv_tokens), engines, most, work)
    assert seconds >= max(lengths) * 0.1
    assert round_seconds(replace(ENGINE, kv_tokens=10**9), engines, most, work) <= seconds * 1.5
