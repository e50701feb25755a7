"""How long responses are. Pure.

A law gives each sample its length by name: policies that are compared get the same lengths, whatever they launch when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp
from typing import Protocol

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.chance import normal, uniform


class LengthLaw(Protocol):
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

    def __call__(self, sample: SampleId) -> int:
        prompt = normal(self.seed, sample.row) if self.prompt_sigma else 0.0
        response = normal(self.seed, *sample) if self.sample_sigma else 0.0
        length = self.median * exp(self.prompt_sigma * prompt + self.sample_sigma * response)
        return min(max(1, ceil(length)), self.longest)


@dataclass(frozen=True, slots=True)
class Observed:
    """The lengths that a run showed; `otherwise` is the law of samples that it didn't."""

    lengths: Mapping[SampleId, int]
    otherwise: LengthLaw

    def __call__(self, sample: SampleId) -> int:
        known = self.lengths.get(sample)
        return self.otherwise(sample) if known is None else known


@dataclass(frozen=True, slots=True)
class _Responses:
    """Lengths of one prompt, ascending, with the share of its responses that are at most as long."""

    places: tuple[float, ...]
    shares: tuple[float, ...]

    def quantile(self, share: float) -> int:
        place = min(bisect_right(self.shares, share), len(self.places) - 1)
        return max(1, round(self.places[place]))


@dataclass(frozen=True, slots=True)
class FirstLaunchLaw:
    """The law that the audit estimates from a window of prompts: each drawn prompt is like one of the window.

    `group_size` responses of one launch are at even shares of that prompt's law from a random start, so that a group has
    the window's own spread: single draws from eight responses would rarely have the longest among them.
    """

    prompts: Sequence[_Responses] = field(repr=False)
    group_size: int
    seed: int = 0

    @classmethod
    def of(cls, launched: FirstLaunches, group_size: int, seed: int = 0) -> FirstLaunchLaw:
        """Raises ValueError without a prompt."""
        atoms: dict[int, list[tuple[float, float]]] = {}
        for prompt, place, mass in zip(launched.prompts, launched.likely, launched.masses, strict=True):
            atoms.setdefault(int(prompt), []).append((float(place), float(mass)))
        if not atoms:
            raise ValueError("no prompt was launched")
        return cls([_responses(sorted(of)) for of in atoms.values()], group_size, seed)

    def __call__(self, sample: SampleId) -> int:
        prompt = self.prompts[int(uniform(self.seed, sample.epoch, sample.row) * len(self.prompts))]
        start = uniform(self.seed, sample.epoch, sample.row, sample.attempt)
        return prompt.quantile((start + sample.index) / self.group_size % 1)


def _responses(atoms: Sequence[tuple[float, float]]) -> _Responses:
    total = sum(mass for _, mass in atoms)
    shares = accumulate(mass / total for _, mass in atoms)
    return _Responses(tuple(place for place, _ in atoms), tuple(shares))
