"""Comparisons of scores, which are sums of products and seldom exact. Pure."""

from collections.abc import Collection

# Scores that differ by less than this share of their magnitude, or of 1, are equal.
TOLERANCE = 1e-6


def reaches(score: float, bound: float) -> bool:
    """Whether the score is at least the bound, within TOLERANCE x max(1, |bound|)."""
    return score >= bound - TOLERANCE * max(1.0, abs(bound))


def exceeds(score: float, bound: float) -> bool:
    """Whether the score is above the bound, by more than TOLERANCE x max(1, |bound|)."""
    return score > bound + TOLERANCE * max(1.0, abs(bound))


def all_equal(scores: Collection[float]) -> bool:
    """Whether the scores are equal, within TOLERANCE x max(1, the largest magnitude)."""
    largest, least = max(scores), min(scores)
    return largest - least <= TOLERANCE * max(1.0, abs(largest), abs(least))
