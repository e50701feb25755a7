"""Advantages: how much better a sample is than expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from longboat_crds.algorithm import AdvantageBaseline, AdvantageScale

if TYPE_CHECKING:
    from longboat_crds.algorithm import ResolvedAlgorithm

# Added to a standard deviation before dividing, so that a group of equal rewards gives zeros.
STD_EPSILON = 1e-6


def advantages(
    rewards: Sequence[float | None], groups: Sequence[Hashable], algorithm: ResolvedAlgorithm
) -> list[float]:
    """Computes one advantage for each sample: (reward - baseline) / scale.

    `rewards[i]` is the reward of sample i and `groups[i]` names its group. A sample without a reward counts in no baseline or scale, and
    its advantage is 0 (TRL 1.16, `GRPOTrainer._generate_and_score_completions`).

    Baselines: GroupMean (GRPO, arXiv 2402.03300 §4.1.1), LeaveOneOut, the mean of the group's other samples (RLOO, arXiv
    2402.14740 §3.3; a group of one has baseline 0), BatchMean (REINFORCE++, arXiv 2501.03262).
    Scales: None (Dr. GRPO, arXiv 2503.20783 §3.2), GroupStd (GRPO), BatchStd, the deviation of the centred rewards of the
    batch (REINFORCE++). Deviations have n - 1 in the denominator, and STD_EPSILON is added to them.
    Sums are exactly rounded: the order of samples is irrelevant.

    Raises ValueError if the lengths differ or a reward is not finite.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} group names")
    scored = [position for position, reward in enumerate(rewards) if reward is not None]
    scores = [reward for reward in rewards if reward is not None]
    if not all(map(math.isfinite, scores)):
        raise ValueError("rewards must be finite: drop the groups of samples that couldn't be graded first")
    members: dict[Hashable, list[int]] = {}
    for index, position in enumerate(scored):
        members.setdefault(groups[position], []).append(index)
    centred = _centre(scores, list(members.values()), algorithm.advantage_baseline)
    scaled = dict(zip(scored, _scale(scores, centred, list(members.values()), algorithm.advantage_scale), strict=True))
    return [scaled.get(position, 0.0) for position in range(len(rewards))]


def look_beyond_group(algorithm: ResolvedAlgorithm) -> bool:
    """Whether an advantage depends on rewards of other groups, so that none is known before the whole batch is."""
    return (
        algorithm.advantage_baseline is AdvantageBaseline.BATCH_MEAN
        or algorithm.advantage_scale is AdvantageScale.BATCH_STD
    )


def _centre(rewards: Sequence[float], groups: list[list[int]], baseline: AdvantageBaseline) -> list[float]:
    centred = [0.0] * len(rewards)
    if baseline is AdvantageBaseline.BATCH_MEAN:
        groups = [[position for group in groups for position in group]]
    for group in groups:
        values = [rewards[position] for position in group]
        total = math.fsum(values)
        for position, value in zip(group, values, strict=True):
            if baseline is AdvantageBaseline.LEAVE_ONE_OUT:
                others = len(values) - 1
                centred[position] = value - (total - value) / others if others else value
            else:
                centred[position] = value - total / len(values)
    return centred


def _scale(
    rewards: Sequence[float], centred: list[float], groups: list[list[int]], scale: AdvantageScale
) -> list[float]:
    if scale is AdvantageScale.NONE:
        return centred
    if scale is AdvantageScale.BATCH_STD:
        divisor = standard_deviation(centred) + STD_EPSILON
        return [value / divisor for value in centred]
    scaled = list(centred)
    for group in groups:
        divisor = standard_deviation([rewards[position] for position in group]) + STD_EPSILON
        for position in group:
            scaled[position] = centred[position] / divisor
    return scaled


def standard_deviation(values: Sequence[float]) -> float:
    """Computes the square root of the unbiased variance (n - 1 in the denominator); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
