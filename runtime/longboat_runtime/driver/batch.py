"""From the groups a round kept to one optimizer step, and what is wrong with that one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_crds.reasons import Reason
from longboat_runtime.interfaces import TrainReport, TrainRequest, TrainSample
from longboat_runtime.problems import SpecProblem
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
