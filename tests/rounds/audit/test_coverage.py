"""The intervals have their nominal coverage for policies whose bias is known."""

from __future__ import annotations

import numpy as np
import pytest

from longboat_runtime.rounds.audit.length_bias import LengthBias, audit
from longboat_runtime.rounds.audit.paired import Estimate
from tests.rounds.audit.racing import LONGEST, Racing, play, true_bias

PROMPT_RACING = Racing()
SAMPLE_RACING = Racing(sample_overcommit=1.25)
LOST_LONG_ROUNDS = Racing(deferred_lost=0.5)
REDRAWN_BY_LOT = Racing(by_lot=True)
LOST_BY_LOT = Racing(prompt_overcommit=1.0, lost=0.2)


def audits(policy: Racing, rounds: int, windows: int) -> list[LengthBias]:
    seeds = (np.random.default_rng([rounds, window]) for window in range(windows))
    return [audit(play(policy, rounds, rng).prompts(), LONGEST).overall for rng in seeds]


def coverage(estimates: list[Estimate], truth: float) -> float:
    return float(np.mean([estimate.low <= truth <= estimate.high for estimate in estimates]))


def misses(policy: Racing, found: list[LengthBias]) -> dict[str, float]:
    """Coverages below 93 %: the nominal 95 %, less an allowance for chance."""
    ratio, distance = true_bias(policy)
    each = {
        "mean_ratio": coverage([bias.mean_ratio for bias in found], ratio),
        "ks": coverage([bias.ks for bias in found], distance),
    }
    return {name: share for name, share in each.items() if share < 0.93}


@pytest.mark.parametrize(
    "policy",
    [
        PROMPT_RACING,
        *(pytest.param(policy, marks=pytest.mark.extended) for policy in (SAMPLE_RACING, LOST_LONG_ROUNDS)),
    ],
    ids=["prompt_racing", "sample_racing", "lost_long_rounds"],
)
def test_one_period_of_a_biased_policy(policy: Racing) -> None:
    assert not misses(policy, audits(policy, rounds=4, windows=50))


@pytest.mark.parametrize(
    ("policy", "rounds"),
    [pytest.param(REDRAWN_BY_LOT, 4, marks=pytest.mark.extended), (LOST_BY_LOT, 5)],
    ids=["redrawn", "lost"],
)
def test_one_period_without_bias_is_never_found_biased(policy: Racing, rounds: int) -> None:
    # Without bias the band is exact, not wider than needed: more windows tell 93 % from 95 %.
    found = audits(policy, rounds, windows=200)
    assert not misses(policy, found)
    assert max(bias.ks.low for bias in found) < 0.03


def test_four_periods() -> None:
    assert not misses(PROMPT_RACING, audits(PROMPT_RACING, rounds=16, windows=20))


@pytest.mark.extended
def test_racing_of_samples_shows_in_four_periods() -> None:
    found = audits(SAMPLE_RACING, rounds=16, windows=12)
    assert not misses(SAMPLE_RACING, found)
    assert min(bias.ks.low for bias in found) > 0.05
    assert max(bias.mean_ratio.high for bias in found) < 0.95
    ratio, distance = true_bias(SAMPLE_RACING)
    assert np.mean([bias.mean_ratio.value for bias in found]) == pytest.approx(ratio, abs=0.01)
    assert np.mean([bias.ks.value for bias in found]) == pytest.approx(distance, abs=0.005)
