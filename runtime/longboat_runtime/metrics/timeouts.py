"""Learned timeouts as metrics, and as lines for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from longboat_crds.status import LINE_LENGTH, MOST_LEARNED_LIMITS, LearnedLimit
from longboat_runtime.reward.timeouts import LearnedTimeouts, RewardTimes, Tally

# Terms and precision of the continued fraction of the incomplete beta function.
_MOST_TERMS, _TOLERANCE = 10_000, 1e-12
# This many domains have metrics of their own: those with the most grades.
MOST_DOMAINS = 64


def timeout_metrics(timeouts: LearnedTimeouts) -> dict[str, float]:
    """Returns `reward/timeouts/NAME/*` of each reward, over the grades so far that had a learned limit.

    Grades of groups that were given up don't count, unless it was for their equal rewards. The same is there of its `slowest` tenth of
    problems, and of the MOST_DOMAINS domains with most such grades; nothing without any.
    """
    metrics: dict[str, float] = {}
    for name, reward_times in timeouts.rewards.items():
        tallies = {"": reward_times.total, "slowest/": reward_times.slowest}
        tallies |= {f"domains/{domain}/": tally for domain, tally in _largest(reward_times, MOST_DOMAINS)}
        for part, tally in tallies.items():
            if tally.grades:
                metrics |= {f"reward/timeouts/{name}/{part}{key}": value for key, value in _metrics(tally).items()}
    return metrics


def learned_limits(timeouts: LearnedTimeouts) -> dict[str, list[LearnedLimit]]:
    """Describes the learned limits of each reward, by its name: those of the domains with most grades that had one."""
    return {
        limits.name: [
            _line(domain, tally, *limit)
            for domain, tally in _largest(timeouts.rewards[limits.name], MOST_LEARNED_LIMITS)
            if (limit := limits.for_domain(domain)) is not None
        ]
        for limits in timeouts.newest()
    }


def _largest(reward_times: RewardTimes, most: int) -> Iterator[tuple[str, Tally]]:
    yield from sorted(reward_times.of_domains.items(), key=lambda item: (-item[1].grades, item[0]))[:most]


def _metrics(tally: Tally) -> dict[str, float]:
    low, high = interval(tally.wrong, tally.audits)
    return {
        "kill_rate": tally.kills / tally.grades,
        "saved_seconds": tally.saved,
        "audits": float(tally.audits),
        "wrong_kill_rate": tally.wrong / max(tally.audits, 1),
        "wrong_kill_rate_low": low,
        "wrong_kill_rate_high": high,
    }


def _line(domain: str, tally: Tally, middle: float, unknown: float) -> LearnedLimit:
    low, high = interval(tally.wrong, tally.audits)
    return LearnedLimit(
        domain=domain[:LINE_LENGTH],
        limit=f"{middle:.2g} s in the middle, {unknown:.2g} s for a new problem",
        kills=f"{tally.kills} of {tally.grades} grades",
        wrong_kills=f"{low:.1%} to {high:.1%} of grades, by {tally.audits} audits",
        saved=f"{tally.saved:.0f} s",
    )


def interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Computes Clopper and Pearson's interval of a share with Lancaster's mid-P correction; (0, 1) without trials.

    Uncorrected, it covers the truth far more often than it says as long as hits are few, which wrong kills are.
    """
    if not trials:
        return 0.0, 1.0
    tail = (1 - confidence) / 2

    def more(share: float) -> float:
        """Computes the chance of more hits, equal ones counted half."""
        return (_at_least(hits + 1, trials, share) + _at_least(hits, trials, share)) / 2

    low = 0.0 if hits == 0 else _root(lambda share: more(share) - tail)
    high = 1.0 if hits == trials else _root(lambda share: more(share) - (1 - tail))
    return low, high


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _at_least(hits: int, trials: int, share: float) -> float:
    """Computes the chance of at least so many hits: the regularised incomplete beta function at `share`, of hits and trials - hits + 1."""
    if hits <= 0 or hits > trials:
        return float(hits <= 0)
    a, b = float(hits), float(trials - hits + 1)
    # The fraction converges fast below the mean.
    if share > (a + 1) / (a + b + 2):
        return 1.0 - _at_least(trials - hits + 1, trials, 1.0 - share)
    ways = math.lgamma(a + b) - math.lgamma(a + 1) - math.lgamma(b)
    return math.exp(ways + a * math.log(share) + b * math.log1p(-share)) / _fraction(a, b, share)


def _fraction(a: float, b: float, x: float) -> float:
    """Computes the continued fraction 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function, by Lentz' method.

    DLMF 8.17.22 has the fraction.
    """
    value = above = 1.0
    below = 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        above = 1.0 + d / above
        below = 1.0 / (1.0 + d * below)
        value *= above * below
        if abs(above * below - 1.0) < _TOLERANCE:
            break
    return value
