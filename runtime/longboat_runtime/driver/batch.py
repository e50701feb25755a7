"""From the groups a round kept to one optimizer step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_runtime.interfaces import TrainRequest, TrainSample
from longboat_runtime.rounds.records import RoundRecord, SampleRecord
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.trainer.advantages import advantages


def kept_samples(view: View, round_: RoundRecord) -> dict[SampleId, SampleRecord]:
    """The batch, sorted by id: the order in which samples are packed."""
    groups = [group for prompt in sorted(round_.kept) if (group := view.group(prompt))]
    return {sample: group.samples[sample.index] for group in groups for sample in sorted(group.counted_ids)}


def train_request(
    step: int,
    steps: int,
    batch: Mapping[SampleId, SampleRecord],
    rewards: Sequence[float],
    algorithm: ResolvedAlgorithm,
    full_batch: int,
) -> TrainRequest:
    """Step `step` of `steps`, with the advantages of the batch from its `rewards`, in the same order.

    `full_batch` is the number of samples of a step that lost none: the constant denominator.
    """
    groups: Sequence[PromptId] = [sample.prompt for sample in batch]
    values = advantages(rewards, groups, algorithm)
    samples = tuple(TrainSample(sample, value) for sample, value in zip(batch, values, strict=True))
    return TrainRequest(step, steps, samples, full_batch)
