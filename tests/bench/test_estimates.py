"""Intervals of the benchmarks: they hold what they should, and say how much more would settle a question."""

from __future__ import annotations

import numpy as np
import pytest

from bench.rounds.estimates import mean, ratio


@pytest.mark.parametrize("count", [3, 12, 60])
def test_the_interval_of_a_mean_has_the_truth_as_often_as_it_says(count: int) -> None:
    source = np.random.default_rng(1)
    found = [mean(source.normal(0.3, 1.0, count)) for _ in range(1000)]
    assert 0.93 <= np.mean([estimate.low <= 0.3 <= estimate.high for estimate in found]) <= 0.97


def test_a_ratio_is_of_sums_over_the_same_prompts() -> None:
    estimate = ratio([(2.0, 1.0), (30.0, 20.0), (4.0, 3.0)])
    assert estimate.value == 36 / 24
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.count == 3


@pytest.mark.parametrize("count", [50, 200])
def test_so_many_more_would_exclude_the_loss(count: int) -> None:
    source = np.random.default_rng(2)
    values = source.normal(0.0, 1.0, count) - 0.001
    values -= values.mean()
    needed = mean(values).needed(0.05)
    assert needed is not None
    assert needed > count, "unresolved with so few"
    repeated = np.resize(values, needed * 2)
    assert mean(repeated).low > -0.05


def test_no_number_excludes_a_loss_that_is_there() -> None:
    assert mean([-0.1, -0.2, -0.3]).needed(0.05) is None
