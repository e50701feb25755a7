"""What rounds would take with engines of each size: by a profile, corrected by what rounds took. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from longboat_runtime.rollout.round_seconds import Work, round_seconds, typical_length, work_of
from longboat_runtime.rollout.throughput import Throughput, with_kv_tokens
from longboat_runtime.rounds.events import RoundKind, RoundMeasured

# So many rounds are remembered of each kind with each size.
KEPT = 6
# What a round of a kind will take is the mean over its last ones, each counting for this share of the one after it.
FADING = 0.3
# Two like rounds differ by so much, as a share of their seconds (standard deviation).
NOISE = 0.04
# How wrong a profile may be (standard deviation of the logarithm): at least, and at most; between them as wrong as it has shown
# itself.
LEAST_ERROR, MOST_ERROR = 0.03, 1.0
# What a profile's error is made of, as shares of its variance: what all sizes and kinds have in common, all rounds of a kind, all of a
# size, and what is of one size in one kind. So what one size shows says half about another size in rounds of the same kind.
COMMON, OF_KIND, OF_SIZE, OWN = 0.4, 0.1, 0.3, 0.2
# What a round has shown counts half after so many more.
HALF_LIFE = 24
# Of how many short rounds it is remembered what they left to the next long one, and in how many quantiles.
PERIOD, QUANTILES = 8, 64
# A long round is predicted by what short ones have left once that is this share of it.
ENOUGH = 0.75
# What a round would take less with another size counts as chance up to the share SLACK of its seconds, and while lengths are guesses up to
# GUESSED_SLACK.
SLACK, GUESSED_SLACK = 0.03, 0.2
# A profile is right while its error has shown itself to be no more than this (standard deviation of the logarithm).
RIGHT = 0.2
# By so many last rounds the share of long ones is counted.
REMEMBERED_KINDS = 24


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine runs at most `max_sequences` at once, and a response has at most `max_tokens`."""

    max_sequences: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PricedRound:
    """A measured round, the `number`-th: it took `seconds` with engines of `size` devices, and drew `tokens`.

    A profile prices it at `prices` seconds, by size. If it was a long one, `ahead` are the prices of what short rounds had left to it,
    as far as they were known.
    """

    number: int
    kind: RoundKind
    size: int
    seconds: float
    tokens: int
    prices: Mapping[int, float]
    ahead: Mapping[int, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Of the profile: the logarithm of measured seconds / priced seconds."""
        return log(self.seconds / self.prices[self.size])


@dataclass(frozen=True, slots=True)
class Estimates:
    """Logarithms of the seconds of rounds by (kind, size) in `cells`: means, and the covariance of their errors.

    `corrections` is the part of the means by which the profile is corrected.
    """

    cells: tuple[tuple[RoundKind, int], ...]
    means: Sequence[float]
    corrections: Sequence[float]
    covariance: Any

    def knows(self, kind: RoundKind) -> bool:
        """Whether rounds of this kind can be predicted."""
        return any(of == kind for of, _ in self.cells)

    def seconds(self, kind: RoundKind, size: int) -> float:
        """Of a round of this kind with engines of this size."""
        return exp(self.means[self.cells.index((kind, size))])

    def correction(self, kind: RoundKind, size: int) -> float:
        """By which the profile's price of such a round is multiplied."""
        return exp(self.corrections[self.cells.index((kind, size))])

    def gain(self, kind: RoundKind, present: int, other: int) -> tuple[float, float]:
        """The logarithm of (seconds with `present`) / (seconds with `other`), and its standard error."""
        i, j = self.cells.index((kind, present)), self.cells.index((kind, other))
        variance = self.covariance[i, i] + self.covariance[j, j] - 2 * self.covariance[i, j]
        return self.means[i] - self.means[j], sqrt(max(float(variance), 1e-12))


@dataclass(frozen=True, slots=True)
class Predictions:
    """What measured rounds have taught: bounded, and all there is to predict from.

    `number` counts rounds, `rounds` are the last KEPT of each kind and size, oldest first, and `kinds` the kinds of the last rounds.
    `left` are the numbers of responses that each short round since the last long one has left, with quantiles of their lengths, and
    `ahead` the prices of the long round that they add up to, once they are ENOUGH of it; the last one left `leaving` times the responses
    that it trained. `longest` are lengths in the last long round, and `typical` is the length by which half of the responses of the short
    rounds before it had ended; `typicals` are those of each short round since. `costs` are the seconds of the last change to each size,
    and `kv_tokens` what the KV cache of each size that has run holds.
    """

    number: int = 0
    rounds: tuple[PricedRound, ...] = ()
    kinds: tuple[RoundKind, ...] = ()
    left: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ahead: Mapping[int, float] = field(default_factory=dict)
    leaving: float = 0.0
    longest: tuple[int, ...] = ()
    typical: float = 0.0
    typicals: tuple[float, ...] = ()
    costs: Mapping[int, float] = field(default_factory=dict)
    kv_tokens: Mapping[int, int] = field(default_factory=dict)

    def measured(self, body: RoundMeasured, throughput: Throughput, limits: Limits) -> Predictions:
        """After a round, which is priced for each size of `throughput` by the responses that it had.

        All devices of the round's engines are priced as engines of one size, with the KV cache that engines have reported. A round
        without any response, or with engines of a size that `throughput` doesn't have, teaches nothing.
        """
        work, size = body.work, body.tensor_parallel
        if work is None or work.seconds <= 0 or not work.responses.completed or size not in throughput:
            return self
        devices = body.engines * size
        held = {**self.kv_tokens, size: body.kv_tokens} if body.kv_tokens else self.kv_tokens
        throughput = with_kv_tokens(throughput, held)

        def prices_of(work: Work) -> dict[int, float]:
            return {
                of: round_seconds(model, max(1, devices // of), limits.max_sequences, work)
                for of, model in throughput.items()
            }

        typical = typical_length(work.responses)
        known = self._known(typical if body.kind is RoundKind.SHORT else self.typical)
        asked = work_of(work.responses, work.prompt_tokens, known, limits.max_tokens)
        kinds = (*self.kinds, body.kind)[-REMEMBERED_KINDS:]
        after = replace(self, number=self.number + 1, kinds=kinds, kv_tokens=held)
        priced = PricedRound(after.number, body.kind, size, work.seconds, body.generated_tokens, prices_of(asked))
        if body.kind is RoundKind.LONG:
            priced = replace(priced, ahead=self.ahead)
            after = replace(after, left=(), ahead={}, longest=work.responses.lengths, typicals=())
            after = replace(after, typical=fmean(self.typicals) if self.typicals else self.typical)
        elif work.left.samples:
            of_left = work_of(work.left, work.prompt_tokens, known, limits.max_tokens).lengths
            after = replace(after, typicals=(*self.typicals, typical)[-PERIOD:])
            left = (*self.left, (work.left.samples, _quantiles(of_left, QUANTILES)))[-PERIOD:]
            samples = work.responses.samples - work.left.samples
            after = replace(after, left=left, leaving=work.left.samples / max(1, samples))
            if sum(of for of, _ in left) >= ENOUGH * samples > 0:
                together = tuple(sorted(length for _, lengths in left for length in lengths))
                after = replace(after, ahead=prices_of(Work(samples, samples, work.prompt_tokens, together)))
        return replace(after, rounds=_last_of_each((*self.rounds, priced)))

    def _known(self, typical: float) -> tuple[int, ...]:
        """Lengths of a long round now, when half of the responses of a short one end by `typical` tokens.

        They are those of the last long round, multiplied by the factor by which short rounds' have grown (accelerated failure time).
        """
        longer = typical / self.typical if typical and self.typical else 1.0
        return tuple(round(longer * length) for length in self.longest)

    def reshaped(self, size: int, seconds: float) -> Predictions:
        """After a change to engines of this size, which took so long."""
        return replace(self, costs={**self.costs, size: seconds})

    @property
    def right(self) -> bool:
        """Whether measured rounds have shown no more of the profile's error than RIGHT."""
        return _shown_variance(self.rounds) <= RIGHT**2

    def tried(self, kind: RoundKind, size: int) -> bool:
        """Whether a remembered round of this kind had engines of this size."""
        return any((one.kind, one.size) == (kind, size) for one in self.rounds)

    def share_of_long(self) -> float:
        """Of all rounds: as among the last ones; before the first, there will be as many as what short rounds leave makes."""
        if RoundKind.LONG in self.kinds:
            return self.kinds.count(RoundKind.LONG) / len(self.kinds)
        return self.leaving / (1 + self.leaving)

    def estimates(self) -> Estimates:
        """What the next rounds take, for all kinds and sizes that can be priced.

        The price of a kind with a size is the mean price of its last rounds (FADING). That of a long round is the price of what short
        rounds have left to it, once it is known: multiplied by the root of how much more the last long round was than what had been left
        to it, since lengths beyond where responses were stopped are a guess, which errs by another factor each time.

        The logarithm of measured seconds / priced seconds, the profile's error, is a Gaussian process over (kind, size) with the variance
        that it has shown, within LEAST_ERROR and MOST_ERROR, and covariances by COMMON, OF_KIND, OF_SIZE and OWN; each measured round
        shows it with NOISE, which grows with age (HALF_LIFE). The estimate is its posterior given all rounds.
        """
        prices = {
            (kind, size): seconds for kind in RoundKind for size, seconds in self._prices(kind).items() if seconds > 0
        }
        cells = tuple(prices)
        variance = _shown_variance(self.rounds)
        shown = tuple((one.kind, one.size) for one in self.rounds)
        noise = [NOISE**2 * 2 ** ((self.number - one.number) / HALF_LIFE) for one in self.rounds]
        among = variance * _correlations(shown, shown) + np.diag(noise)
        to = variance * _correlations(cells, shown)
        weights = np.linalg.solve(among, to.T).T if shown else to
        errors = np.array([one.error for one in self.rounds])
        corrections = weights @ errors
        means = np.array([log(price) for price in prices.values()]) + corrections
        covariance = variance * _correlations(cells, cells) - weights @ to.T
        return Estimates(cells, tuple(means.tolist()), tuple(corrections.tolist()), covariance)

    def _prices(self, kind: RoundKind) -> Mapping[int, float]:
        of_kind = sorted((one for one in self.rounds if one.kind == kind), key=lambda one: -one.number)
        if not of_kind:
            return self.ahead if kind is RoundKind.LONG else {}
        weights = [FADING**age for age in range(len(of_kind))]
        newest = of_kind[0]
        mean = {
            size: sum(w * one.prices.get(size, 0.0) for w, one in zip(weights, of_kind, strict=True)) / sum(weights)
            for size in newest.prices
        }
        if kind is RoundKind.SHORT or not (newest.ahead and self.ahead):
            return mean
        bias = sqrt(newest.prices[newest.size] / newest.ahead[newest.size])
        return {size: bias * self.ahead[size] for size in mean}

    def forgone(self, estimates: Estimates, kind: RoundKind, present: int, other: int) -> float:
        """Seconds that the last rounds of this kind would have taken less with `other` than with `present`, as far as it is no chance.

        Each remembered round counts with its corrected prices, less SLACK of its seconds; the sum never falls below 0 (a cumulative sum
        test: Page 1954, Continuous inspection schemes). So does the next long round, once it can be priced by what short
        ones have left: it takes as long as many of them, too long to wait until it has passed. Before the first long round, which comes
        within PERIOD rounds or never, the lengths of stopped responses are guesses: more of a difference is chance (GUESSED_SLACK).
        """
        guessed = bool(self.left) and not self.longest and self.number < PERIOD
        slack = GUESSED_SLACK if guessed else SLACK
        sizes = present, other
        seconds = [
            tuple(one.prices[size] * estimates.correction(kind, size) for size in sizes)
            for one in self.rounds
            if one.kind == kind and {*sizes} <= one.prices.keys()
        ]
        if kind is RoundKind.LONG and self.ahead:
            seconds.append(tuple(estimates.seconds(kind, size) for size in sizes))
        total = 0.0
        for now, then in seconds:
            total = max(0.0, total + now - then - slack * now)
        return total

    def to_snapshot(self) -> dict[str, Any]:
        """As plain JSON values, for checkpoints."""
        snapshot: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return snapshot

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> Predictions:
        """Inverse of `to_snapshot`. Raises ValueError if it isn't one."""
        return _ADAPTER.validate_python(snapshot)


_ADAPTER = TypeAdapter(Predictions)


def _last_of_each(rounds: Sequence[PricedRound]) -> tuple[PricedRound, ...]:
    """The last KEPT of each kind and size, in order."""
    newest, seen = [], dict[tuple[RoundKind, int], int]()
    for one in reversed(rounds):
        cell = one.kind, one.size
        seen[cell] = seen.get(cell, 0) + 1
        if seen[cell] <= KEPT:
            newest.append(one)
    return tuple(reversed(newest))


def _shown_variance(rounds: Sequence[PricedRound]) -> float:
    """Of the profile's error: the mean square of what each kind and size have shown on average, beyond what noise would."""
    cells: dict[tuple[RoundKind, int], list[float]] = {}
    for one in rounds:
        cells.setdefault((one.kind, one.size), []).append(one.error)
    squares = [(sum(of) / len(of)) ** 2 - NOISE**2 / len(of) for of in cells.values()]
    shown = sum(squares) / len(squares) if squares else 0.0
    return min(max(shown, LEAST_ERROR**2), MOST_ERROR**2)


def _correlations(first: Sequence[tuple[RoundKind, int]], second: Sequence[tuple[RoundKind, int]]) -> Any:
    kinds = np.array([[a[0] == b[0] for b in second] for a in first], dtype=float).reshape(len(first), len(second))
    sizes = np.array([[a[1] == b[1] for b in second] for a in first], dtype=float).reshape(len(first), len(second))
    return COMMON + OF_KIND * kinds + OF_SIZE * sizes + OWN * kinds * sizes


def _quantiles(ascending: Sequence[int], count: int) -> tuple[int, ...]:
    if len(ascending) <= count:
        return tuple(ascending)
    return tuple(ascending[int((number + 0.5) * len(ascending) / count)] for number in range(count))
