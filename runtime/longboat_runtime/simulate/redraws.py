"""How long responses are when a prompt is launched again, from what one launch showed. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log, sqrt

from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.chance import normal, uniform

# Lengths of one prompt with the share of its responses that have them, together 1.
Atoms = Sequence[tuple[float, float]]


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
    def of(cls, prompts: Sequence[Atoms], group_size: int, seed: int) -> Redraws:
        """From launches of `group_size` responses to each of `prompts`; of single responses nothing says what is chance."""
        means = [sum(share * log(length) for length, share in atoms) for atoms in prompts]
        middle = sum(means) / len(means)
        correction = group_size / max(1, group_size - 1)
        within = correction * _mean(
            [
                sum(share * (log(length) - mean) ** 2 for length, share in of)
                for of, mean in zip(prompts, means, strict=True)
            ]
        )
        between = max(0.0, _mean([(mean - middle) ** 2 for mean in means]) - within / group_size)
        trust = between / (between + within / group_size) if between else 0.0
        effects = sorted(
            (sqrt(correction) * (log(length) - mean), share)
            for of, mean in zip(prompts, means, strict=True)
            for length, share in of
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
        """Response tokens of `sample`, a later attempt at the prompt of that number."""
        level = self.levels[prompt] + self.spread * normal(self.seed, sample.epoch, sample.row)
        place = bisect_right(self.shares, uniform(self.seed, *sample))
        effect = self.effects[min(place, len(self.effects) - 1)]
        return min(max(1, round(exp(level + effect))), self.longest)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
