"""From the groups a round kept to one optimizer step, and what is wrong with that one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_crds.reasons import Reason
from longboat_crds.rewards import RewardSpec
from longboat_runtime.interfaces import TrainReport, TrainSample
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.combine import batch_rewards
from longboat_runtime.rounds.records import RoundRecord, SampleRecord
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import SampleId
from longboat_runtime.trainer.advantages import advantages


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a step, sorted by id: the order in which they are packed. `rewards` and `advantages` are in the same order."""

    records: Mapping[SampleId, SampleRecord]
    rewards: Sequence[float]
    advantages: Sequence[float]

    @property
    def samples(self) -> tuple[TrainSample, ...]:
        """What the trainer is given."""
        return tuple(map(TrainSample, self.records, self.advantages))


def kept_batch(view: View, round_: RoundRecord, rewards: Sequence[RewardSpec], algorithm: ResolvedAlgorithm) -> Batch:
    """What the round kept, with what it is worth by the job's `rewards` and `algorithm`."""
    groups = [view.groups[prompt] for prompt in sorted(round_.kept)]
    records = {sample: group.samples[sample.index] for group in groups for sample in sorted(group.counted_ids)}
    worth = batch_rewards(rewards, list(records.values()))
    return Batch(records, worth, advantages(worth, [sample.prompt for sample in records], algorithm))


def skip_problem(report: TrainReport, skipped_steps: int, limit: int) -> SpecProblem | None:
    """What minibatches that were skipped mean for the job; None if none was.

    `skipped_steps` steps in a row before this one trained nothing. If this one did neither and they are `limit` with it
    (`trainer.maxSkippedSteps`), the job fails: the next step would begin with the same weights.
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
        cure = f"If that repeats: {cure[0].lower()}{cure[1:]}, in another job"
    else:
        what = (
            f"No minibatch of step {report.step} had a finite gradient: the weights stay, and its prompts are dropped"
        )
        cure = f"The job fails after {limit} such steps in a row (trainer.maxSkippedSteps). {cure}, in another job"
    return SpecProblem(Reason.LOSS_NOT_FINITE, "spec.trainer.optimizer.learningRate", f"{what}. {cure}.", fatal)
