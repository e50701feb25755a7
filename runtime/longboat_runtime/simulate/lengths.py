"""Draws the lengths of responses. Pure.

A distribution gives each sample its length by its id: policies that are compared get the same lengths, whatever they launch when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp, log, sqrt
from typing import Protocol

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.simulate.chance import normal, uniform

_ROUNDING = 1e-9

# Lengths of one prompt with the share of its responses that have them, together 1.
Atoms = Sequence[tuple[float, float]]


class LengthDistribution(Protocol):
    """Response tokens of a sample that isn't stopped, at least 1."""

    def __call__(self, sample: SampleId) -> int: ...


@dataclass(frozen=True, slots=True)
class TwoLevel:
    """Log-normal, prompt effect x sample effect, between 1 and `longest` tokens.

    Responses to one prompt have similar lengths (Seer, arXiv:2511.14617). `prompt_sigma` and `sample_sigma` are of the logarithm;
    a prompt's effect is that of its row in every attempt.
    """

    median: float
    prompt_sigma: float
    sample_sigma: float
    longest: int
    seed: int = 0

    def __call__(self, sample: SampleId, *part: object) -> int:
        """Draws the tokens of a sample, or of the `part` of it that has this name."""
        return min(max(1, ceil(self.draw(sample, *part))), self.longest)

    def draw(self, sample: SampleId, *part: object) -> float:
        """Draws a number that is neither rounded nor bounded."""
        prompt = normal(self.seed, sample.row) if self.prompt_sigma else 0.0
        response = normal(self.seed, *sample, *part) if self.sample_sigma else 0.0
        return self.median * exp(self.prompt_sigma * prompt + self.sample_sigma * response)


@dataclass(frozen=True, slots=True)
class FirstLaunchDistribution:
    """The distribution that the audit estimates from a window of prompts: each drawn prompt is like one of the window.

    The responses of a first launch are at even shares of that prompt's distribution from a random start, so that a group has the
    window's own spread: single draws from eight responses would often miss the longest of them. Later attempts follow
    `redraws`. `numbers` are those of prompts of the window that are to be themselves.
    """

    quantiles: Sequence[_Quantiles] = field(repr=False)
    redraws: Redraws
    group_size: int
    numbers: Mapping[PromptId, int] = field(repr=False)
    seed: int

    @classmethod
    def from_launches(
        cls, launched: FirstLaunches, group_size: int, numbers: Mapping[PromptId, int] | None = None, seed: int = 0
    ) -> FirstLaunchDistribution:
        """Makes the distribution of `launched`; `numbers` maps prompts to theirs in it. Raises ValueError without a prompt."""
        atoms: dict[int, list[tuple[float, float]]] = {}
        for prompt, place, mass in zip(launched.prompts, launched.likely, launched.masses, strict=True):
            atoms.setdefault(int(prompt), []).append((max(1.0, float(place)), float(mass)))
        if not atoms:
            raise ValueError("no prompt was launched")
        prompts = [sorted(atoms[number]) for number in sorted(atoms)]
        redraws = Redraws.from_launches(prompts, group_size, seed)
        return cls([_Quantiles.from_atoms(prompt) for prompt in prompts], redraws, group_size, numbers or {}, seed)

    def __call__(self, sample: SampleId) -> int:
        number = self.numbers.get(sample.prompt)
        if number is None:
            number = int(uniform(self.seed, sample.epoch, sample.row) * len(self.quantiles))
        if sample.attempt:
            return self.redraws(number, sample)
        start = uniform(self.seed, sample.epoch, sample.row, "start")
        return self.quantiles[number]((start + sample.index) / self.group_size % 1)


@dataclass(frozen=True, slots=True)
class _Quantiles:
    """Lengths of one prompt, ascending, with the share of its responses that are at most as long."""

    places: Sequence[float]
    shares: Sequence[float]

    @classmethod
    def from_atoms(cls, atoms: Atoms) -> _Quantiles:
        shares = accumulate(mass for _, mass in atoms)
        return cls([place for place, _ in atoms], [*shares])

    def __call__(self, share: float) -> int:
        # Masses add up with rounding, which must not make two responses one.
        place = bisect_right(self.shares, share + _ROUNDING)
        return max(1, round(self.places[min(place, len(self.places) - 1)]))


@dataclass(frozen=True, slots=True)
class Redraws:
    """Log-lengths are prompt effect plus sample effect.

    A prompt's `levels` is its mean log-length drawn towards that of all prompts by as much as chance moves it (best linear unbiased
    prediction: Robinson 1991, That BLUP is a good thing), and uncertain by `spread`: a prompt that was deferred for a long
    response is likely to be shorter the next time. Sample effects are those of all prompts: `effects`, ascending, with the share up
    to each. No response is longer than `longest` tokens.
    """

    levels: Sequence[float] = field(repr=False)
    spread: float
    effects: Sequence[float] = field(repr=False)
    shares: Sequence[float] = field(repr=False)
    longest: int
    seed: int

    @classmethod
    def from_launches(cls, prompts: Sequence[Atoms], group_size: int, seed: int) -> Redraws:
        """Estimates redraws from launches of `group_size` responses to each of `prompts`.

        Of single responses nothing says what is chance.
        """
        means = [sum(share * log(length) for length, share in atoms) for atoms in prompts]
        middle = sum(means) / len(means)
        correction = group_size / max(1, group_size - 1)
        within = correction * _mean(
            [
                sum(share * (log(length) - mean) ** 2 for length, share in atoms)
                for atoms, mean in zip(prompts, means, strict=True)
            ]
        )
        between = max(0.0, _mean([(mean - middle) ** 2 for mean in means]) - within / group_size)
        trust = between / (between + within / group_size) if between else 0.0
        effects = sorted(
            (sqrt(correction) * (log(length) - mean), share)
            for atoms, mean in zip(prompts, means, strict=True)
            for length, share in atoms
        )
        return cls(
            levels=[middle + trust * (mean - middle) for mean in means],
            spread=sqrt(between * (1 - trust)),
            effects=[effect for effect, _ in effects],
            shares=[share / len(prompts) for share in accumulate(share for _, share in effects)],
            longest=round(max(length for atoms in prompts for length, _ in atoms)),
            seed=seed,
        )

    def __call__(self, prompt: int, sample: SampleId) -> int:
        """Draws how many response tokens `sample` has, a later attempt at the prompt of that number."""
        level = self.levels[prompt] + self.spread * normal(self.seed, sample.epoch, sample.row)
        place = bisect_right(self.shares, uniform(self.seed, *sample))
        effect = self.effects[min(place, len(self.effects) - 1)]
        return min(max(1, round(exp(level + effect))), self.longest)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
