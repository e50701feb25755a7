import math
import statistics
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longboat_crds.algorithm import (
    AdvantageBaseline,
    AdvantageScale,
    AlgorithmName,
    AlgorithmSpec,
    ResolvedAlgorithm,
    resolve,
)
from longboat_runtime.trainer.advantages import STD_EPSILON, advantages, look_beyond_group

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.0]
GROUPS = ["a"] * 4 + ["b"] * 4


def preset(name: AlgorithmName) -> ResolvedAlgorithm:
    return resolve(AlgorithmSpec(name=name))


def knobs(baseline: AdvantageBaseline, scale: AdvantageScale) -> ResolvedAlgorithm:
    return resolve(AlgorithmSpec(advantage_baseline=baseline, advantage_scale=scale))


def by_group(rule: Callable[[list[float]], list[float]]) -> list[float]:
    return [value for group in (REWARDS[:4], REWARDS[4:]) for value in rule(group)]


def grpo(group: list[float]):
    return [(r - statistics.mean(group)) / (statistics.stdev(group) + STD_EPSILON) for r in group]


def test_grpo_divides_by_the_groups_deviation() -> None:
    assert advantages(REWARDS, GROUPS, preset(AlgorithmName.GRPO)) == pytest.approx(by_group(grpo), abs=1e-12)


def test_dapo_has_grpos_advantages() -> None:
    assert advantages(REWARDS, GROUPS, preset(AlgorithmName.DAPO)) == pytest.approx(by_group(grpo), abs=1e-12)


def test_dr_grpo_only_centres() -> None:
    expected = by_group(lambda group: [r - statistics.mean(group) for r in group])
    assert advantages(REWARDS, GROUPS, preset(AlgorithmName.DR_GRPO)) == pytest.approx(expected, abs=1e-12)


def test_rloo_compares_with_the_others_of_the_group() -> None:
    expected = by_group(lambda g: [r - statistics.mean(g[:i] + g[i + 1 :]) for i, r in enumerate(g)])
    assert advantages(REWARDS, GROUPS, preset(AlgorithmName.RLOO)) == pytest.approx(expected, abs=1e-12)


def test_reinforce_plus_plus_normalises_over_the_batch() -> None:
    array = np.array(REWARDS)
    expected = (array - array.mean()) / (array.std(ddof=1) + STD_EPSILON)
    assert advantages(REWARDS, GROUPS, preset(AlgorithmName.REINFORCE_PLUS_PLUS)) == pytest.approx(expected, abs=1e-12)


def test_group_baseline_with_batch_scale_uses_the_deviation_of_centred_rewards() -> None:
    algorithm = knobs(AdvantageBaseline.GROUP_MEAN, AdvantageScale.BATCH_STD)
    centred = np.array(by_group(lambda group: [r - statistics.mean(group) for r in group]))
    expected = centred / (centred.std(ddof=1) + STD_EPSILON)
    assert advantages(REWARDS, GROUPS, algorithm) == pytest.approx(expected, abs=1e-12)


def test_a_lone_sample_has_no_baseline_under_leave_one_out() -> None:
    assert advantages([0.7], ["a"], preset(AlgorithmName.RLOO)) == [0.7]


def test_no_samples() -> None:
    assert advantages([], [], preset(AlgorithmName.GRPO)) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages([1.0, bad], ["a", "a"], preset(AlgorithmName.GRPO))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rewards for 1"):
        advantages([1.0, 0.0], ["a"], preset(AlgorithmName.GRPO))


batches = st.lists(st.tuples(st.floats(-100, 100, allow_subnormal=False), st.integers(0, 4)), min_size=1, max_size=40)
algorithms = st.builds(knobs, st.sampled_from(AdvantageBaseline), st.sampled_from(AdvantageScale))


def advantages_in(batch: list[tuple[float, int]], algorithm: ResolvedAlgorithm) -> list[float]:
    rewards, groups = zip(*batch, strict=True)
    return advantages(rewards, groups, algorithm)


@given(batches, algorithms, st.randoms())
def test_the_order_of_samples_is_irrelevant_bit_for_bit(
    batch: list[tuple[float, int]], algorithm: ResolvedAlgorithm, random: Random
) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)
    result = advantages_in(batch, algorithm)
    shuffled = advantages_in([batch[i] for i in order], algorithm)
    assert shuffled == [result[i] for i in order]


@given(batches, algorithms, st.floats(-50, 50))
def test_adding_a_constant_to_all_rewards_changes_nothing_with_a_mean_baseline(
    batch: list[tuple[float, int]], algorithm: ResolvedAlgorithm, constant: float
) -> None:
    assume(algorithm.advantage_baseline is not AdvantageBaseline.LEAVE_ONE_OUT)
    # A job can't ask for this: it would divide what isn't small by a deviation that is only rounding.
    refused = (AdvantageBaseline.BATCH_MEAN, AdvantageScale.GROUP_STD)
    assume((algorithm.advantage_baseline, algorithm.advantage_scale) != refused)
    rewards, groups = zip(*batch, strict=True)
    shifted = [reward + constant for reward in rewards]
    # Dividing by a tiny deviation magnifies rounding.
    tolerance = 1e-9 if algorithm.advantage_scale is AdvantageScale.NONE else 1e-9 / STD_EPSILON
    assert advantages(shifted, groups, algorithm) == pytest.approx(
        advantages(rewards, groups, algorithm), abs=tolerance
    )


@given(st.floats(-100, 100), st.integers(2, 16), algorithms)
def test_equal_rewards_teach_nothing(reward: float, count: int, algorithm: ResolvedAlgorithm) -> None:
    result = advantages([reward] * count, ["g"] * count, algorithm)
    assert result == pytest.approx([0.0] * count, abs=1e-6)


@given(batches, algorithms)
def test_a_group_that_looks_at_itself_alone_has_the_advantages_of_the_batch(
    batch: list[tuple[float, int]], algorithm: ResolvedAlgorithm
) -> None:
    assume(not look_beyond_group(algorithm))
    whole = advantages_in(batch, algorithm)
    for name in {group for _, group in batch}:
        alone = [sample for sample in batch if sample[1] == name]
        assert advantages_in(alone, algorithm) == [
            value for value, (_, group) in zip(whole, batch, strict=True) if group == name
        ]


@pytest.mark.parametrize("baseline", AdvantageBaseline)
@pytest.mark.parametrize("scale", AdvantageScale)
def test_advantages_say_whether_they_look_beyond_the_group(baseline: AdvantageBaseline, scale: AdvantageScale) -> None:
    algorithm = knobs(baseline, scale)
    alone = advantages(REWARDS[:4], GROUPS[:4], algorithm)
    assert look_beyond_group(algorithm) == (advantages(REWARDS, GROUPS, algorithm)[:4] != alone)


@pytest.mark.parametrize("baseline", AdvantageBaseline)
@pytest.mark.parametrize("scale", AdvantageScale)
@given(rewards=st.lists(st.none() | st.floats(-10, 10), min_size=8, max_size=8))
def test_samples_without_a_reward_change_no_other_and_have_no_advantage(
    baseline: AdvantageBaseline, scale: AdvantageScale, rewards: list[float | None]
) -> None:
    algorithm = knobs(baseline, scale)
    places = [place for place, reward in enumerate(rewards) if reward is not None]
    alone = advantages([rewards[place] for place in places], [GROUPS[place] for place in places], algorithm)
    expected = dict(zip(places, alone, strict=True))
    assert advantages(rewards, GROUPS, algorithm) == [expected.get(place, 0.0) for place in range(8)]
