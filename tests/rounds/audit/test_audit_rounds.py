"""Audit rounds compared with trained responses: the intervals are right for distributions whose difference is known."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from longboat_runtime.rounds.audit.audit_rounds import compare
from longboat_runtime.rounds.audit.length_bias import MIN_PROMPTS
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.paired import DRAWS
from tests.rounds.audit.racing import GROUP_SIZE, LONGEST, Racing, lengths, play, true_bias

RUNS = 100
# The coverage of 95 % intervals, less three standard errors over RUNS intervals.
HELD = 0.93 - 3 * np.sqrt(0.05 * 0.95 / RUNS)


def audited(rng: np.random.Generator, count: int) -> list[PromptLengths]:
    drawn = lengths(rng, rng.normal(0, 0.9, count), GROUP_SIZE)
    groups = [tuple(group.tolist()) for group in drawn]
    return [PromptLengths("math", group, cut=(), later=(), trained=group) for group in groups]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Racing(1.0, 1.0), marks=pytest.mark.extended),
        Racing(1.25, 1.5),
        pytest.param(Racing(1.25, 1.0, deferred_lost=1.0), marks=pytest.mark.extended),
    ],
)
def test_intervals_hold_the_difference(policy: Racing) -> None:
    ratio, distance = true_bias(policy)
    held = np.zeros(2)
    for run in range(RUNS):
        rng = np.random.default_rng(run)
        found = compare(audited(rng, 128), play(policy, 8, rng).prompts(), LONGEST)
        held += found.mean_ratio.low <= ratio <= found.mean_ratio.high, found.ks.low <= distance <= found.ks.high
    assert (held / RUNS >= HELD).all(), held / RUNS


def test_a_large_bias_is_found() -> None:
    rng = np.random.default_rng(1)
    found = compare(audited(rng, 500), play(Racing(1.25, deferred_lost=1.0), 40, rng).prompts(), LONGEST)
    assert found.mean_ratio.high < 1
    assert found.ks.low > 0


def test_few_draws_have_their_functions_in_memory_at_a_time() -> None:
    groups = [tuple(range(100 * number + 1, 100 * number + 101)) for number in range(MIN_PROMPTS)]
    window, lengths = [PromptLengths("math", group, (), (), group) for group in groups], 100 * MIN_PROMPTS
    tracemalloc.start()
    try:
        compare(window, window, lengths)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < DRAWS * lengths * np.dtype(float).itemsize


def test_too_few_prompts_on_either_side_are_unresolved() -> None:
    rng = np.random.default_rng(1)
    few, many = audited(rng, MIN_PROMPTS - 1), audited(rng, MIN_PROMPTS)
    assert compare(few, many, LONGEST).ks is None
    assert compare(many, few, LONGEST).mean_ratio is None
    assert compare(many, many, LONGEST).ks is not None


def test_domains_are_completed_separately_and_counted_together() -> None:
    one = [PromptLengths("a", (100, 100), (), (), (100, 100))] * MIN_PROMPTS
    other = [PromptLengths("b", (300,), (50,), (200,), ())] * MIN_PROMPTS
    found = compare([*one, *other], one, LONGEST)
    assert found.prompts == 2 * MIN_PROMPTS
    assert found.mean_ratio.value == pytest.approx(100 / 175)
