"""What the blocks of a task say of its arms, against the synchronous one on the same seeds and prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.rounds.arms import BASELINE
from bench.rounds.block import generated_tokens, trained_tokens
from bench.rounds.estimates import Estimate, mean, ratio

Blocks = Mapping[tuple[str, int], dict[str, Any]]

LONGEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm. Seconds are of all its blocks, for each trained sample; `faster` has the baseline's by the arm's, by seed.

    `length` is the mean length of its trained responses by the baseline's, on the prompts that both trained.
    """

    rollout: float
    step: float
    rollout_faster: Sequence[float]
    step_faster: Sequence[float]
    generated_to_kept: float
    long_share: float
    length: Estimate


def measured(blocks: Blocks, arm: str) -> Measured:
    """`blocks` are of one task."""
    own = {seed: block for (name, seed), block in blocks.items() if name == arm}
    trained = {seed: trained_tokens(block) for seed, block in own.items()}
    samples = {seed: sum(map(len, of.values())) for seed, of in trained.items()}
    seconds = {
        name: {seed: sum(block[name]) / samples[seed] for seed, block in own.items()} for name in ("rollout", "step")
    }
    before = {
        name: {seed: sum(blocks[BASELINE, seed][name]) / _samples(blocks[BASELINE, seed]) for seed in own}
        for name in ("rollout", "step")
    }
    pairs = [
        (float(np.mean(of[prompt])), float(np.mean(reference[prompt])))
        for seed, of in trained.items()
        for reference in [trained_tokens(blocks[BASELINE, seed])]
        for prompt in of.keys() & reference.keys()
    ]
    kept = sum(sum(map(sum, of.values())) for of in trained.values())
    return Measured(
        rollout=float(np.mean([*seconds["rollout"].values()])),
        step=float(np.mean([*seconds["step"].values()])),
        rollout_faster=[before["rollout"][seed] / seconds["rollout"][seed] for seed in own],
        step_faster=[before["step"][seed] / seconds["step"][seed] for seed in own],
        generated_to_kept=sum(generated_tokens(block) for block in own.values()) / kept,
        long_share=float(np.mean([flag for block in own.values() for flag in block["long"]])),
        length=ratio(pairs),
    )


def longer(blocks: Blocks, arm: str, other: str) -> Estimate | None:
    """Mean trained length of the other arm less the arm's, by the baseline's, on the prompts that all three trained; None without any."""
    found = []
    for seed in sorted({seed for _, seed in blocks}):
        keys = [(name, seed) for name in (arm, other, BASELINE)]
        if all(key in blocks for key in keys):
            first, second, reference = (trained_tokens(blocks[key]) for key in keys)
            found += [
                (float(np.mean(second[prompt]) - np.mean(first[prompt])), float(np.mean(reference[prompt])))
                for prompt in first.keys() & second.keys() & reference.keys()
            ]
    return ratio(found) if found else None


def _samples(block: dict[str, Any]) -> int:
    return sum(map(len, trained_tokens(block).values()))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The arm's share of right answers less the baseline's, on the same prompts: of all, and of those whose answers are longest.

    Intervals are over prompts. How far two trainings differ by chance is in `by_seed`, the difference of each.
    """

    overall: Estimate
    longest: Estimate
    answers: int
    by_seed: Sequence[float]


def accuracy(blocks: Blocks, arm: str) -> Accuracy:
    """Paired by prompt, over all seeds that the arm has."""
    own = {seed for name, seed in blocks if name == arm}
    right: dict[int, list[float]] = defaultdict(list)
    tokens: dict[int, list[float]] = defaultdict(list)
    answers = 0
    by_seed: dict[int, float] = defaultdict(float)
    for (name, seed), block in blocks.items():
        if name in (arm, BASELINE) and seed in own:
            sign = 1 if name == arm else -1
            by_seed[seed] += sign * float(np.mean([score for *_, score in block["held_out"]]))
            for row, length, score in block["held_out"]:
                right[row].append(sign * score)
                if name == BASELINE:
                    tokens[row].append(length)
                answers += name == arm
    differences = {row: 2 * float(np.mean(of)) for row, of in right.items()}
    order = sorted(differences, key=lambda row: float(np.mean(tokens[row])))
    longest = order[-max(1, round(LONGEST_SHARE * len(order))) :]
    overall, decile = mean([*differences.values()]), mean([differences[row] for row in longest])
    return Accuracy(overall, decile, answers, [difference for _, difference in sorted(by_seed.items())])


@dataclass(frozen=True, slots=True)
class Law:
    """Lengths of the baseline's responses: tokens, and by the median of their round."""

    median: float
    mean: float
    p75: float
    longest_by_median: float
    limit_share: float


def law(blocks: Blocks, prompts: int) -> Law:
    """Rounds of the baseline have `prompts` prompts each, in the order they were drawn; medians over rounds."""
    rounds = []
    for (name, _), block in blocks.items():
        if name == BASELINE:
            of = trained_tokens(block)
            lengths = [of[prompt] for prompt in (tuple(drawn) for drawn in block["drawn"]) if prompt in of]
            rounds += [np.concatenate(lengths[first : first + prompts]) for first in range(0, len(lengths), prompts)]
    everything = np.concatenate(rounds)
    return Law(
        median=float(np.median(everything)),
        mean=float(everything.mean()),
        p75=float(np.quantile(everything, 0.75)),
        longest_by_median=median(float(of.max() / np.median(of)) for of in rounds),
        limit_share=float((everything == everything.max()).mean()),
    )
