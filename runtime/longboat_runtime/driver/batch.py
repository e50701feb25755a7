"""Turns groups that a round kept into the batch of a chunk or an optimizer step, and its report into a problem. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.combine import batch_rewards
from longboat_runtime.rounds.records import SampleRecord
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import FinishReason, PromptId, SampleId
from longboat_runtime.trainer.advantages import advantages
from longboat_runtime.trainer.protocol import TrainReport, TrainSample


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that are trained together, sorted by id, with their `rewards` and `advantages`.

    A sample to which no reward function applies has no reward.
    """

    records: Mapping[SampleId, SampleRecord]
    rewards: Sequence[float | None]
    advantages: Sequence[float]

    def advantages_in_loss(self, *, mask_truncated: bool) -> list[float]:
        """Lists the advantages of the samples in the loss: with `mask_truncated`, not of those that were cut off."""
        return [
            advantage
            for record, advantage in zip(self.records.values(), self.advantages, strict=True)
            if not (mask_truncated and record.finish_reason is FinishReason.LENGTH)
        ]

    @property
    def samples(self) -> tuple[TrainSample, ...]:
        """The batch in the form that the trainer takes."""
        sizes = [record.size for record in self.records.values()]
        return tuple(map(TrainSample, self.records, self.advantages, sizes))


def assemble(
    view: View, prompts: Iterable[PromptId], rewards: Sequence[RewardSpec], algorithm: ResolvedAlgorithm
) -> Batch:
    """Assembles the samples of kept groups, with rewards and advantages by the job's `rewards` and `algorithm`.

    What they are among the groups of a chunk, they are in the whole batch (`rounds.rules.next_chunk`).
    """
    groups = [view.groups[prompt] for prompt in sorted(prompts)]
    records = {sample: group.samples[sample.index] for group in groups for sample in sorted(group.counted_ids)}
    sample_rewards = batch_rewards(rewards, list(records.values()))
    return Batch(records, sample_rewards, advantages(sample_rewards, [sample.prompt for sample in records], algorithm))


def skip_problem(report: TrainReport, skipped_steps: int, limit: int) -> SpecProblem | None:
    """Returns the problem to report if minibatches were skipped; None if none was.

    `skipped_steps` is how many steps in a row before this one trained nothing of their batches. If this one also trained nothing, and
    there are now at least `limit` (`trainer.maxSkippedSteps`) of them, the problem is fatal: the next step would start from the same
    weights.
    """
    if not report.skipped:
        return None
    in_a_row = 0 if report.trained else skipped_steps + 1
    fatal = in_a_row >= limit
    cure = "Lower the learning rate, or use model.dtype BFloat16 or Float32"
    if fatal:
        what = (
            f"No minibatch of the last {in_a_row} steps had a finite gradient, and trainer.maxSkippedSteps is {limit}"
        )
        cure += ", in a new job that resumes from the claim (checkpoint.resumeFrom)"
    elif report.trained:
        what = f"{report.skipped} of {report.minibatches} minibatches of step {report.step} had no finite gradient and were skipped"
        cure = f"If this happens again: {cure[0].lower()}{cure[1:]}, in another job"
    else:
        what = f"No minibatch of step {report.step} had a finite gradient: the weights are unchanged, and its prompts are dropped"
        cure = f"The job fails after {limit} such steps in a row (trainer.maxSkippedSteps). {cure}, in another job"
    return SpecProblem(Reason.LOSS_NOT_FINITE, "spec.trainer.optimizer.learningRate", f"{what}. {cure}.", fatal)
