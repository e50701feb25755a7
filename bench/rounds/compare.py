"""What the blocks of a task say about its arms, against the synchronous one on the same seeds and prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
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
    """Computes what is measured of an arm. `blocks` are of one task, with the baseline's on each of the arm's seeds."""
    own = {seed: block for (name, seed), block in blocks.items() if name == arm}
    trained = {seed: trained_tokens(block) for seed, block in own.items()}
    samples = {seed: sum(map(len, prompts.values())) for seed, prompts in trained.items()}
    seconds = {
        name: {seed: sum(block[name]) / samples[seed] for seed, block in own.items()} for name in ("rollout", "step")
    }
    before = {
        name: {seed: sum(blocks[BASELINE, seed][name]) / _samples(blocks[BASELINE, seed]) for seed in own}
        for name in ("rollout", "step")
    }
    pairs = [
        (float(np.mean(prompts[prompt])), float(np.mean(reference[prompt])))
        for seed, prompts in trained.items()
        for reference in [trained_tokens(blocks[BASELINE, seed])]
        for prompt in prompts.keys() & reference.keys()
    ]
    trained_tokens_in_all = sum(sum(map(sum, prompts.values())) for prompts in trained.values())
    return Measured(
        rollout=float(np.mean([*seconds["rollout"].values()])),
        step=float(np.mean([*seconds["step"].values()])),
        rollout_faster=[before["rollout"][seed] / seconds["rollout"][seed] for seed in own],
        step_faster=[before["step"][seed] / seconds["step"][seed] for seed in own],
        generated_to_kept=sum(generated_tokens(block) for block in own.values()) / trained_tokens_in_all,
        long_share=float(np.mean([flag for block in own.values() for flag in block["long"]])),
        length=ratio(pairs),
    )


def longer(blocks: Blocks, arm: str, other: str) -> Estimate | None:
    """Estimates the mean trained length of the other arm less the arm's, as a share of the baseline's.

    It is over the prompts that all three trained, on the seeds that all have. None without any.
    """
    pairs = []
    for seed in sorted({seed for _, seed in blocks}):
        keys = [(name, seed) for name in (arm, other, BASELINE)]
        if all(key in blocks for key in keys):
            first, second, reference = (trained_tokens(blocks[key]) for key in keys)
            pairs += [
                (float(np.mean(second[prompt]) - np.mean(first[prompt])), float(np.mean(reference[prompt])))
                for prompt in first.keys() & second.keys() & reference.keys()
            ]
    return ratio(pairs) if pairs else None


def _samples(block: dict[str, Any]) -> int:
    return sum(map(len, trained_tokens(block).values()))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The arm's share of correct answers less the baseline's, on the same prompts: of all, and of those whose answers are longest.

    Both are means over seeds, and so are their intervals: two trainings differ by more than answers to more prompts would tell.
    `answers` and `long_answers` are the arm's. `by_seed` has the overall difference of each.
    """

    overall: Estimate
    longest: Estimate
    answers: int
    long_answers: int
    by_seed: Sequence[float]


def accuracy(blocks: Blocks, arm: str) -> Accuracy:
    """Compares an arm's accuracy on held-out prompts with the baseline's, paired by seed, over the arm's seeds: at least two."""
    seeds = sorted(seed for name, seed in blocks if name == arm)
    tokens: dict[int, list[int]] = defaultdict(list)
    for seed in seeds:
        for row, length, _ in blocks[BASELINE, seed]["held_out"]:
            tokens[row].append(length)
    order = sorted(tokens, key=lambda row: float(np.mean(tokens[row])))
    longest = set(order[-max(1, round(LONGEST_SHARE * len(order))) :])
    answers = [[answer[0] for answer in blocks[arm, seed]["held_out"]] for seed in seeds]
    by_seed = [_less(blocks[arm, seed], blocks[BASELINE, seed], set(order)) for seed in seeds]
    return Accuracy(
        overall=mean(by_seed),
        longest=mean([_less(blocks[arm, seed], blocks[BASELINE, seed], longest) for seed in seeds]),
        answers=sum(map(len, answers)),
        long_answers=sum(row in longest for rows in answers for row in rows),
        by_seed=by_seed,
    )


def _less(block: dict[str, Any], baseline: dict[str, Any], rows: Container[int]) -> float:
    """Returns the share of correct answers to `rows`, less the baseline's share."""
    first, second = (
        float(np.mean([score for row, _, score in each["held_out"] if row in rows])) for each in (block, baseline)
    )
    return first - second


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lengths of the baseline's responses: tokens, and by the median of their round."""

    median: float
    mean: float
    p75: float
    longest_by_median: float
    limit_share: float


def distribution(blocks: Blocks, prompts: int) -> Distribution:
    """Describes the trained lengths of the baseline.

    The prompts that a block trained, in the order they were drawn, make its rounds of `prompts` each; the last may be smaller.
    `longest_by_median` is a median over rounds.
    """
    rounds = []
    for (name, _), block in blocks.items():
        if name == BASELINE:
            tokens = trained_tokens(block)
            lengths = [tokens[prompt] for prompt in (tuple(drawn) for drawn in block["drawn"]) if prompt in tokens]
            rounds += [np.concatenate(lengths[first : first + prompts]) for first in range(0, len(lengths), prompts)]
    everything = np.concatenate(rounds)
    return Distribution(
        median=float(np.median(everything)),
        mean=float(everything.mean()),
        p75=float(np.quantile(everything, 0.75)),
        longest_by_median=median(float(lengths.max() / np.median(lengths)) for lengths in rounds),
        limit_share=float((everything == everything.max()).mean()),
    )
