"""Reward of the countdown."""

from longboat_graders.result import RewardSample


def reward(sample: RewardSample) -> float:
    """1 for the exact answer, else half the share of the right answer that the model's answer begins with."""
    right, given = sample.ground_truth, sample.text
    if given == right:
        return 1.0
    common = next(
        (n for n, (a, b) in enumerate(zip(right, given, strict=False)) if a != b), min(len(right), len(given))
    )
    return 0.5 * common / (len(right) + 1)
