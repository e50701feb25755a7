"""What a round asked of its engines, and how long it takes them."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.round_seconds import COMPUTED, Work, _groups, round_seconds, work_of
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.events import Responses, RoundWork
from longboat_runtime.rounds.work import prompt_correlation
from longboat_runtime.samples import SampleId

# A step takes 0.1 s whatever runs, and prompts nothing.
STEADY = EngineModel(10**9, 0.0, (1, 1000), (1, 10_000), ((0.1, 0.1), (0.1, 0.1)))
LENGTHS = st.lists(st.integers(1, 500), max_size=40).map(lambda of: tuple(sorted(of)))


def test_a_round_ends_once_enough_responses_have_ended_on_whichever_engine() -> None:
    lengths = (1, 1, 1, 1, 100, 100, 100, 100)
    assert round_seconds(STEADY, 4, 10, Work(8, 4, 8, 5, lengths)) == pytest.approx(0.1), "however they are dealt"
    assert round_seconds(STEADY, 4, 10, Work(8, 5, 8, 5, lengths)) == pytest.approx(10.0)
    assert round_seconds(STEADY, 8, 10, Work(8, 8, 8, 5, lengths)) == pytest.approx(10.0)


def test_engines_have_as_many_responses_but_not_the_same_work() -> None:
    """One at a time each: eight of ten long ones on an even deal, more where chance has put more of them together."""
    work = Work(40, 40, 40, 5, (1,) * 20 + (100,) * 20)
    assert 50 + 0.5 < round_seconds(STEADY, 4, 1, work) <= 100.0


def test_responses_to_one_prompt_run_on_one_engine() -> None:
    """One at a time each: four alike take four times as long as the longest, whatever the deal."""
    work = Work(16, 16, 4, 5, (1,) * 12 + (100,) * 4, 1.0)
    assert round_seconds(STEADY, 4, 1, work) == pytest.approx(40.0)
    assert round_seconds(STEADY, 4, 1, replace(work, prompts=16)) < 40.0
    many = Work(64, 64, 1, 5, (100,) * 64, 1.0)
    assert round_seconds(STEADY, 4, 1, many) == pytest.approx(160.0), "but a large group is divided"
    assert round_seconds(STEADY, 4, 1, replace(work, prompt_correlation=0.0)) < 40.0


@pytest.mark.parametrize("engines", [1, 16])
def test_a_part_of_a_large_round_stands_for_all(engines: int) -> None:
    """With the longest response in it."""
    most = 4 * COMPUTED
    work = Work(most, most, most, 5, tuple(range(1, 513)))
    assert round_seconds(STEADY, engines, 10**6, work) == pytest.approx(51.2)


@given(LENGTHS, LENGTHS, LENGTHS)
def test_stopped_responses_would_have_become_longer(
    ended: tuple[int, ...], stopped: tuple[int, ...], spared: tuple[int, ...]
) -> None:
    samples = len(ended) + len(stopped) + len(spared)
    responses = Responses(samples, len(ended), ended, stopped, len(spared), spared)
    work = work_of(RoundWork(1.0, 5.0, responses), 600)
    assert (work.samples, work.completed, len(work.lengths)) == (samples, len(ended) + len(spared), samples)
    at_least = sorted([*ended, *spared, *(tokens + 1 for tokens in stopped)])
    assert all(length >= least for length, least in zip(work.lengths, at_least, strict=True))
    assert max(work.lengths, default=0) <= 600


def test_what_waited_when_the_round_ended_is_like_what_ran() -> None:
    """Of the six that ran, three had ended at 30 tokens: as many of the nine that never began will have, or one more."""
    responses = Responses(15, 3, (10, 20, 30), (0,) * 9 + (30,) * 3)
    lengths = work_of(RoundWork(1.0, 5.0, responses), 100).lengths
    assert sum(length <= 30 for length in lengths) == 3 + 5
    never = work_of(RoundWork(1.0, 5.0, Responses(12, 6, (10, 10, 20, 20, 30, 30), (0,) * 6)), 100)
    assert {3 <= never.lengths.count(length) <= 5 for length in (10, 20, 30)} == {True}
    assert sum(never.lengths.count(length) for length in (10, 20, 30)) == 12


ENGINE = EngineModel(10_000, 0.001, (1, 10), (100, 200), ((0.1, 0.1), (0.2, 0.2)))


def test_a_round_takes_its_prompts_and_the_steps_of_its_longest_response() -> None:
    assert round_seconds(ENGINE, 1, 10, Work(1, 1, 1, 50, (20,))) == pytest.approx(0.05 + 20 * 0.1)
    assert round_seconds(ENGINE, 2, 10, Work(2, 2, 2, 50, (10, 20))) == pytest.approx(0.05 + 20 * 0.1), "one each"
    both = 2 * 0.05 + 10 * (0.1 + 0.1 / 9) + 10 * 0.1
    assert round_seconds(ENGINE, 1, 10, Work(2, 2, 2, 50, (10, 20))) == pytest.approx(both)
    one_by_one = 2 * 0.05 + 30 * 0.1
    assert round_seconds(ENGINE, 1, 1, Work(2, 2, 2, 50, (10, 20))) == pytest.approx(one_by_one)
    assert round_seconds(ENGINE, 1, 10, Work(2, 1, 2, 50, (10, 20))) == pytest.approx(both - 1.0), (
        "the other is stopped"
    )


def test_what_the_cache_cannot_hold_is_computed_again() -> None:
    small = replace(ENGINE, kv_tokens=130)
    work = Work(2, 2, 2, 50, (40, 40))
    assert round_seconds(small, 1, 10, work) > round_seconds(ENGINE, 1, 10, work) + 0.05
    assert round_seconds(replace(ENGINE, kv_tokens=5), 1, 10, work) > 0, "one sequence always runs"


def test_half_of_the_last_block_of_a_sequence_holds_nothing() -> None:
    tight = replace(ENGINE, kv_tokens=185, block_tokens=2)
    work = Work(2, 2, 2, 50, (40, 40))
    assert round_seconds(tight, 1, 10, work) == round_seconds(ENGINE, 1, 10, work)
    assert round_seconds(replace(tight, block_tokens=16), 1, 10, work) > round_seconds(tight, 1, 10, work)


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.integers(60, 20_000),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 20),
    st.floats(0.0, 1.0),
)
def test_every_round_ends_and_more_cache_never_hurts_much(
    lengths: list[int], kv_tokens: int, engines: int, most: int, prompts: int, correlation: float
) -> None:
    work = Work(len(lengths), len(lengths), min(prompts, len(lengths)), 50, tuple(sorted(lengths)), correlation)
    seconds = round_seconds(replace(ENGINE, kv_tokens=kv_tokens), engines, most, work)
    assert seconds >= max(lengths) * 0.1
    assert round_seconds(replace(ENGINE, kv_tokens=10**9), engines, most, work) <= seconds * 1.5


@given(st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]), st.integers(2, 16))
def test_groups_are_as_alike_as_they_shall_be(correlation: float, size: int) -> None:
    """Of lengths whose logarithms are normal, over many groups."""
    count = 400 * size
    groups = _groups(count, size, correlation, 0)
    assert sorted(place for group in groups for place in group) == [*range(count)]
    normal = NormalDist()
    tokens = {
        SampleId(0, row, 0, index): round(exp(8 + normal.inv_cdf((place + 0.5) / count)))
        for row, group in enumerate(groups)
        for index, place in enumerate(group)
    }
    assert prompt_correlation(tokens) == pytest.approx(correlation, abs=0.1)
