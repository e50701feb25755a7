"""The anchor of a learned timeout: what 39 of 40 correct runs of a problem stay below, by those seen of it and of its domain. Pure.

A limit is a factor times the anchor (`timeouts`). The form is RollPacker's (arXiv:2509.21009), whose anchor is the longest correct run so
far. Such a maximum never forgets one odd run, says nothing of problems that were solved twice, and knows no more of what limits have cut
off. So here the logarithms of correct times are normal, each problem with its location and its spread, both drawn towards those of its
domain by how little is known of it (the random-effects model of one-way classification), and the anchor is what 39 of 40 correct runs of
the problem are expected to stay below, uncertainty included: few runs make a wide limit, none the domain's. A factor of times is a shift
of logarithms, so the hundredfold range between problems costs fast ones nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# The share of correct runs that the anchor covers, as standard deviations of a normal distribution: 0.975. Over 12 simulated runs of the mix
# of `bench.rewards`, limits kill 0.7 % of correct responses and save a factor of 1.58 of CPU seconds; with 0.95, 1.0 % are killed, in some
# runs more, and the factor is 1.62.
COVERED = 1.96
# The prior of logarithms: the spread within a problem, that of problems in a domain, and the number of observations that each counts
# for. Correct times of problems differ a hundredfold, which is four spreads of 1.15.
_SPREAD, _OF_PROBLEMS, _COUNTS_AS = 0.5, 1.15, 2.0
# How many degrees of freedom of its own a problem's spread needs to weigh as much as its domain's.
_OWN_SPREAD = 8.0


class ProblemTimes(NamedTuple):
    """Sums up one problem: how many of its grades ran to the hard limit, and the logarithms of what correct runs took, weighted.

    `weight` and `squares` are the sums of weights and of their squares, `deviation` is the sum of weighted squared deviations from `mean`.
    """

    unlimited: int = 0
    weight: float = 0.0
    squares: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @property
    def effective(self) -> float:
        """Number of equally weighted observations that tell as much (Kish)."""
        return self.weight**2 / self.squares if self.squares else 0.0

    @property
    def degrees(self) -> float:
        """Degrees of freedom of `deviation`."""
        return self.weight - self.squares / self.weight if self.weight else 0.0

    def after(self, logarithm: float | None, weight: float, *, unlimited: bool) -> ProblemTimes:
        """Returns what is known after one more grade. Its `logarithm` counts with `weight`, and is None unless it was of a correct run."""
        count = self.unlimited + unlimited
        if logarithm is None:
            return self._replace(unlimited=count)
        total, off = self.weight + weight, logarithm - self.mean
        mean = self.mean + weight * off / total
        deviation = self.deviation + weight * off * (logarithm - mean)
        return ProblemTimes(count, total, self.squares + weight**2, mean, deviation)


@dataclass(frozen=True, slots=True)
class DomainTimes:
    """Sums over the problems of a domain that have correct runs, forgotten ones included."""

    problems: int = 0
    means: float = 0.0
    squared_means: float = 0.0
    # Sum of one over each problem's effective number of runs.
    inverse: float = 0.0
    deviation: float = 0.0
    degrees: float = 0.0

    def changed(self, before: ProblemTimes, after: ProblemTimes) -> DomainTimes:
        """Returns the sums after a problem of the domain has told more: its sums were `before` and are `after`."""
        was_known, is_known = bool(before.weight), bool(after.weight)
        return DomainTimes(
            self.problems + is_known - was_known,
            self.means + after.mean - before.mean,
            self.squared_means + after.mean**2 - before.mean**2,
            self.inverse + (1 / after.effective if is_known else 0.0) - (1 / before.effective if was_known else 0.0),
            self.deviation + after.deviation - before.deviation,
            self.degrees + after.degrees - before.degrees,
        )

    @property
    def within(self) -> float:
        """The variance of a problem's correct runs."""
        return (self.deviation + _COUNTS_AS * _SPREAD**2) / (self.degrees + _COUNTS_AS)

    def location(self) -> tuple[float, float]:
        """Estimates the location of a problem of which nothing is known: its mean and variance.

        Needs a problem of which something is known.
        """
        mean, within = self.means / self.problems, self.within * self.inverse / self.problems
        degrees = self.problems - 1
        among = max(self.squared_means - self.problems * mean**2 - degrees * within, 0.0)
        between = (among + _COUNTS_AS * _OF_PROBLEMS**2) / (degrees + _COUNTS_AS)
        return mean, between + (between + within) / self.problems

    @property
    def prior(self) -> Prior:
        """Prior of each of the domain's problems. Needs a problem of which something is known."""
        return Prior(*self.location(), self.within)


class Prior(NamedTuple):
    """Holds what a domain says of each of its problems: mean and variance of its location, and the variance within it."""

    mean: float
    variance: float
    within: float

    def anchor(self, problem: ProblemTimes) -> float:
        """Returns the seconds that 39 of 40 correct runs of the problem are expected to stay below."""
        runs = problem.effective
        deviation = problem.deviation / problem.weight * runs if runs else 0.0
        within = (deviation + _OWN_SPREAD * self.within) / (max(runs - 1.0, 0.0) + _OWN_SPREAD)
        variance = 1 / (runs / within + 1 / self.variance)
        mean = variance * (runs * problem.mean / within + self.mean / self.variance)
        return math.exp(min(mean + COVERED * math.sqrt(within + variance), 100.0))
