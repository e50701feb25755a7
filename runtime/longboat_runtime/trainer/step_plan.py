"""How one step's samples are spread over minibatches, ranks and bins, and what each counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_runtime.trainer.aggregation import sample_weights
from longboat_runtime.trainer.packing import Bin, pack, pad, split


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What every rank must know of every sample of a step: its tokens, and whether its response was cut by maxTokens."""

    prompt_tokens: int
    response_tokens: int
    truncated: bool

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`minibatches[m][rank]` are the bins of positions; `weights[i]` is what a response token of sample i counts."""

    minibatches: tuple[tuple[tuple[Bin, ...], ...], ...]
    weights: tuple[float, ...]

    def positions(self, rank: int) -> list[int]:
        """All samples a rank needs, in order."""
        return sorted(p for ranks in self.minibatches for members in ranks[rank] for p in members)


def plan_step(
    sizes: Sequence[SampleSize],
    algorithm: ResolvedAlgorithm,
    *,
    denominator: int,
    max_tokens: int,
    capacity: int,
    ranks: int,
    minibatches: int,
    packed: bool = True,
) -> StepPlan:
    """Splits the samples in their order into minibatches and packs (or else pads) each for all ranks.

    Weights are those of the whole step times the number of minibatches, so that every optimizer update is one of a full
    batch's size. Raises packing.SampleTooLong.
    """
    weights = sample_weights(
        algorithm.aggregation,
        [size.response_tokens for size in sizes],
        [not (algorithm.mask_truncated and size.truncated) for size in sizes],
        denominator,
        max_tokens,
    )
    fill = pack if packed else pad
    planned = []
    for part in split(len(sizes), minibatches):
        bins = fill([sizes[position].tokens for position in part], capacity, ranks)
        planned.append(tuple(tuple(tuple(part[i] for i in members) for members in of_rank) for of_rank in bins))
    return StepPlan(tuple(planned), tuple(weight * minibatches for weight in weights))
