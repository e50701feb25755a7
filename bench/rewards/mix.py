"""A mix of responses to programming problems: how long each takes to grade, and whether it ever ends. The same for the same seed.

What is known of such mixes: correct times of problems differ a hundredfold, one in twenty responses runs until it is killed
(RollPacker, arXiv:2509.21009, section 3.4), and nodes have other work to do at times. All seconds are those of an idle node.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

# Bounds of what correct responses to a problem take in the middle. Beyond the hard limit are only responses that hang.
LEAST_SECONDS, MOST_SECONDS = 0.05, 5.0
HARD_LIMIT = 30.0
# Half of the responses that hang sleep, the other half compute.
HANGING, ASLEEP = 0.05, 0.5
# How many correct responses take a slower way, and how many times as long as others.
SLOW_WAY, SLOWER = 0.05, (2.0, 4.0)
# What wrong responses take, of what a correct one would: most fail early, some are what makes a problem hard to solve in time.
WRONG, WRONG_SLOW_WAY, WRONG_SLOWER = (0.1, 1.1), 0.1, (3.0, 10.0)


class Fate(StrEnum):
    """What becomes of a response that is given all the time there is."""

    CORRECT = "correct"
    WRONG = "wrong"
    ASLEEP = "asleep"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Domain:
    """`share` of the problems are of this domain. Their correct times have this median, and `spread` is that of their logarithms.

    The programs compute for the share `computing` of their time and sleep for the rest.
    """

    name: str
    share: float
    seconds: float
    spread: float
    computing: float


DOMAINS = (
    Domain("functions", 0.4, 0.15, 0.7, 1.0),
    Domain("stdin", 0.4, 0.5, 0.8, 0.9),
    Domain("simulation", 0.2, 1.5, 0.8, 1.0),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Correct responses take `seconds` in the middle, with logarithms spread by `spread`; the share `solved` of those that end is correct."""

    row: int
    domain: Domain
    seconds: float
    spread: float
    solved: float


@dataclass(frozen=True, slots=True)
class Response:
    """It takes so many seconds on an idle node, `cpu_seconds` of them computing; both are infinite if it never ends, the latter unless it sleeps."""

    row: int
    fate: Fate
    seconds: float
    cpu_seconds: float


class Mix:
    """`problems` and their responses."""

    def __init__(self, seed: int, problems: int = 500) -> None:
        self._seed = seed
        generator = np.random.default_rng((seed, 0))
        chosen = generator.choice(len(DOMAINS), problems, p=[domain.share for domain in DOMAINS])
        normal, spreads = generator.standard_normal(problems), generator.uniform(0.1, 0.5, problems)
        solved = generator.uniform(0.05, 0.95, problems)
        self.problems = [
            Problem(
                row,
                domain,
                _clipped(domain.seconds * math.exp(domain.spread * normal[row])),
                spreads[row],
                solved_share,
            )
            for row, (domain, solved_share) in enumerate(zip((DOMAINS[index] for index in chosen), solved, strict=True))
        ]

    def responses(self, rows: Sequence[int], round_: int) -> list[Response]:
        """Draws one response to the problem of each of these rows in this round."""
        generator = np.random.default_rng((self._seed, 1, round_))
        uniform, normal = generator.random((4, len(rows))), generator.standard_normal(len(rows))
        return [
            self._response(self.problems[row], normal[place], *(float(column[place]) for column in uniform))
            for place, row in enumerate(rows)
        ]

    def _response(
        self, problem: Problem, normal: float, hangs: float, solves: float, way: float, scale: float
    ) -> Response:
        if hangs < HANGING:
            asleep = hangs < HANGING * ASLEEP
            return Response(problem.row, Fate.ASLEEP if asleep else Fate.BUSY, math.inf, 0.0 if asleep else math.inf)
        seconds = problem.seconds * math.exp(problem.spread * normal)
        if solves < problem.solved:
            fate = Fate.CORRECT
            seconds *= _between(SLOWER, scale) if way < SLOW_WAY else 1.0
        else:
            fate = Fate.WRONG
            slow = way < WRONG_SLOW_WAY
            seconds *= _between(WRONG_SLOWER, scale) if slow else WRONG[0] + (WRONG[1] - WRONG[0]) * scale
        seconds = min(seconds, 0.9 * HARD_LIMIT)
        return Response(problem.row, fate, seconds, seconds * problem.domain.computing)


class Contention:
    """How many times as long computing takes as on an idle node: it changes every so often."""

    LEVELS, SHARES = (1.0, 2.0, 4.0), (0.5, 0.3, 0.2)
    # How long a level stays on average, in seconds.
    STAYS = 60.0

    def __init__(self, seed: int, seconds: float) -> None:
        """Draws levels for so many seconds; the last one stays."""
        generator = np.random.default_rng((seed, 2))
        self._starts, self._levels = [0.0], [float(generator.choice(self.LEVELS, p=self.SHARES))]
        while self._starts[-1] < seconds:
            self._starts.append(self._starts[-1] + float(generator.exponential(self.STAYS)))
            self._levels.append(float(generator.choice(self.LEVELS, p=self.SHARES)))

    def at(self, seconds: float) -> float:
        """Returns the factor so many seconds after the start."""
        return self._levels[bisect.bisect_right(self._starts, seconds) - 1]


def _clipped(seconds: float) -> float:
    return min(max(seconds, LEAST_SECONDS), MOST_SECONDS)


def _between(bounds: tuple[float, float], share: float) -> float:
    """Returns the value at this share of the way between the bounds, on a logarithmic scale."""
    low, high = bounds
    return low * (high / low) ** share
