"""Spreads the segments of one step's samples over minibatches, ranks and bins, and weights their tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from longboat_crds.algorithm import PolicyLoss, ResolvedAlgorithm
from longboat_runtime.samples import PromptId, SampleSize
from longboat_runtime.trainer.aggregation import sample_weights
from longboat_runtime.trainer.packing import pack, pad, split


class SegmentPlace(NamedTuple):
    """The position of a sample in the step, and the number of one of its segments."""

    sample: int
    segment: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`minibatches[m][rank]` are the bins of segments; `weights[i]` is the weight of a trained token of sample i.

    `samples` that are in the loss have so many trained `tokens`.
    """

    minibatches: tuple[tuple[tuple[tuple[SegmentPlace, ...], ...], ...], ...]
    weights: tuple[float, ...]
    samples: int
    tokens: int


def cut(groups: Sequence[PromptId], parts: int, seed: int, step: int) -> list[list[int]]:
    """Cuts a step into minibatches: ascending positions of samples, given the group that each belongs to.

    Groups stay whole and are shuffled by blake2b over seed, step and their names, so that rows that are adjacent in the dataset,
    such as those of one domain, are spread over the minibatches. Neither the order of the samples nor the number of ranks matters.
    Minibatches differ by at most one group; there are fewer than `parts` if there are fewer groups, but at least one.
    """
    names = {group: "/".join(map(str, (seed, step, *group))).encode() for group in groups}
    order = sorted(names, key=lambda group: (blake2b(names[group], digest_size=8).digest(), group))
    runs = split(len(order), max(1, min(parts, len(order))))
    number_of = {order[place]: number for number, run in enumerate(runs) for place in run}
    minibatches: list[list[int]] = [[] for _ in runs]
    for position, group in enumerate(groups):
        minibatches[number_of[group]].append(position)
    return minibatches


def plan_step(
    sizes: Sequence[SampleSize],
    groups: Sequence[PromptId],
    algorithm: ResolvedAlgorithm,
    *,
    step: int,
    seed: int,
    denominator: int,
    max_tokens: int,
    capacity: int,
    ranks: int,
    minibatches: int,
    packed: bool = True,
    mean_tokens: float | None = None,
) -> StepPlan:
    """Cuts the samples into minibatches (see `cut`) and packs (or else pads) the segments of each for all ranks.

    `groups[i]` is that of sample i. A sample's segments may lie in several bins. Weights are those of the whole step times `minibatches`,
    even if there are fewer, so that every optimizer update is one of a full batch's size. `mean_tokens`: see `sample_weights`. Raises
    packing.SegmentTooLong, and ValueError if a sample with several segments meets a loss that needs its whole response at once.
    """
    if any(len(size.segments) > 1 for size in sizes) and (
        algorithm.policy_loss is PolicyLoss.GSPO or algorithm.sequence_mask is not None
    ):
        raise ValueError("GSPO and sequenceMask take a sample as a whole: its segments may lie in several bins")
    tokens = [size.trained for size in sizes]
    counted = [not (algorithm.mask_truncated and size.truncated) for size in sizes]
    weights = sample_weights(algorithm.aggregation, tokens, counted, denominator, max_tokens, mean_tokens=mean_tokens)
    in_loss = [count for count, inside in zip(tokens, counted, strict=True) if inside and count]
    fill = pack if packed else pad
    planned = []
    for part in cut(groups, minibatches, seed, step):
        places = [SegmentPlace(i, number) for i in part for number in range(len(sizes[i].segments))]
        bins = fill([sizes[i].segments[number].computed for i, number in places], capacity, ranks)
        planned.append(tuple(tuple(tuple(places[i] for i in members) for members in of_rank) for of_rank in bins))
    return StepPlan(tuple(planned), tuple(weight * minibatches for weight in weights), len(in_loss), sum(in_loss))
