"""Windows of tail batching with lengths from a known distribution, so that their bias is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np

from longboat_runtime.rounds.audit.lengths import PromptLengths

GROUP_SIZE = 8
PROMPTS_PER_ROUND = 32
LONGEST = 16_000
# Log-normal, prompt effect x sample effect: the longest response is 25 to 32 medians, as in RollPacker (arXiv:2509.21009).
MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA = 500, 0.9, 0.6


@dataclass(frozen=True)
class Racing:
    """Short rounds of `prompt_overcommit` times the prompts with `sample_overcommit` times the responses.

    `deferred_lost` is the share of deferred prompts that never get their long round, `lost` the share of all prompts, whatever their
    length. With `by_lot` the choice of deferred prompts doesn't depend on lengths either.
    """

    prompt_overcommit: float = 1.25
    sample_overcommit: float = 1.0
    deferred_lost: float = 0.0
    lost: float = 0.0
    by_lot: bool = False

    @property
    def unbiased(self) -> bool:
        reorders = self.prompt_overcommit == 1 or self.by_lot
        return reorders and self.sample_overcommit == 1 and self.deferred_lost == 0


@dataclass(frozen=True)
class Played:
    """First launches [prompts, responses] in ascending order, the lengths where responses were `cut`, and the trained samples."""

    first: np.ndarray
    cut: np.ndarray
    later: np.ndarray
    deferred: np.ndarray
    trained: np.ndarray

    def trained_lengths(self, prompt: int) -> np.ndarray:
        source = self.later if self.deferred[prompt] else self.first
        return source[prompt, : GROUP_SIZE if self.trained[prompt] else 0]

    def prompts(self, domain: str = "math") -> list[PromptLengths]:
        found = []
        for number, first in enumerate(self.first):
            ended = np.count_nonzero(first <= self.cut[number]) if self.deferred[number] else GROUP_SIZE
            found.append(
                PromptLengths(
                    domain,
                    finished=tuple(first[:ended].tolist()),
                    cut=(int(self.cut[number]),) * (len(first) - ended),
                    later=tuple(self.later[number].tolist()) if self.deferred[number] and self.trained[number] else (),
                    trained=tuple(self.trained_lengths(number).tolist()),
                )
            )
        return found

    def bias(self) -> tuple[float, float]:
        """Mean ratio and Kolmogorov-Smirnov distance between trained responses and all first launches, without censoring."""
        kept, redone = self.trained & ~self.deferred, self.trained & self.deferred
        trained = np.sort(np.concatenate([self.first[kept, :GROUP_SIZE].ravel(), self.later[redone].ravel()]))
        launched = np.sort(self.first.ravel())
        grid = np.unique(launched)
        shares = [
            np.searchsorted(distribution, grid, side="right") / len(distribution)
            for distribution in (trained, launched)
        ]
        return trained.mean() / launched.mean(), np.abs(shares[0] - shares[1]).max()


def lengths(rng: np.random.Generator, prompts: np.ndarray, responses: int) -> np.ndarray:
    effects = prompts[:, None] + rng.normal(0, SAMPLE_SIGMA, (len(prompts), responses))
    return np.clip(np.ceil(MEDIAN * np.exp(effects)), 1, LONGEST).astype(int)


def play(policy: Racing, rounds: int, rng: np.random.Generator) -> Played:
    """Plays short rounds, and the long rounds of the prompts they deferred."""
    launched = round(policy.prompt_overcommit * PROMPTS_PER_ROUND)
    count = rounds * launched
    prompts = rng.normal(0, PROMPT_SIGMA, count)
    first = np.sort(lengths(rng, prompts, ceil(policy.sample_overcommit * GROUP_SIZE)), axis=1)
    complete = first[:, GROUP_SIZE - 1]
    order = rng.random(count) if policy.by_lot else complete + rng.random(count) / 2
    rank = order.reshape(rounds, launched).argsort(1).argsort(1)
    closing = np.where(rank == PROMPTS_PER_ROUND - 1, complete.reshape(rounds, launched), 0).max(1)
    ends = rng.permutation(first[:, 0]) if policy.by_lot else np.repeat(closing, launched)
    deferred = rank.ravel() >= PROMPTS_PER_ROUND
    lost = np.where(deferred, policy.deferred_lost, 0) + policy.lost
    return Played(
        first=first,
        cut=np.where(deferred, ends, complete),
        later=lengths(rng, prompts, GROUP_SIZE),
        deferred=deferred,
        trained=rng.random(count) >= lost,
    )


@cache
def true_bias(policy: Racing) -> tuple[float, float]:
    """Mean ratio and Kolmogorov-Smirnov distance of the policy itself, not of a window."""
    return (1.0, 0.0) if policy.unbiased else play(policy, 3000, np.random.default_rng(0)).bias()
