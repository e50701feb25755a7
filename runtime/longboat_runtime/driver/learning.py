"""Tells whether a step's batch had anything to learn from, and what people are told if it hadn't. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.metrics.groups import GroupOutcome
from longboat_runtime.rounds.events import DropReason, Learning
from longboat_runtime.scores import TOLERANCE, all_equal


def learning(advantages: Iterable[float], groups: Sequence[GroupOutcome]) -> Learning:
    """Decides what a step could learn.

    `advantages` are those of the samples in its loss, `groups` all that were judged for it: trained, or dropped for their equal scores.
    The gradient's norm doesn't count: KL, entropy and decay move weights without any advantage.
    """
    if any(abs(advantage) > TOLERANCE for advantage in advantages):
        return Learning.LEARNS
    if not groups:
        return Learning.NOTHING_JUDGED
    return Learning.SOLVED if all(group.all_solved for group in groups) else Learning.IDLE


def learning_problem(
    step: int, outcome: Learning, groups: Sequence[GroupOutcome], dropped: Mapping[DropReason, int]
) -> SpecProblem | None:
    """Makes the problem to report of a step without anything to learn from; None for one that learns.

    `dropped` counts the groups of its round that were given up, by reason.
    """
    if outcome is Learning.LEARNS:
        return None
    if outcome is Learning.SOLVED:
        return SpecProblem(
            Reason.NOTHING_LEFT_TO_LEARN,
            "spec.dataset",
            f"All {len(groups)} groups of step {step} are solved: every response is right, so there is nothing to learn from them. Give harder "
            "rows in a new job whose model.path is this job's export, or lower rounds.steps to end this one.",
            fatal=False,
        )
    scores = [score for group in groups for score in group.rewards]
    cure = "Check the rewards on some responses (`longboat samples`)"
    if not scores:
        reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(dropped.items()) if count)
        cause = f"no group of step {step} had rewards to learn from ({f'dropped: {reasons}' if reasons else 'the round had none'})"
    elif not all(group.equal_scores for group in groups if group.rewards):
        cause = f"the responses of step {step} whose rewards differ were all cut off at maxTokens, and maskTruncated leaves these out"
        cure = "Raise rollout.sampling.maxTokens, or set algorithm.maskTruncated to false"
    else:
        values = f"{scores[0]:g} everywhere" if all_equal(scores) else f"from {min(scores):g} to {max(scores):g}"
        cause = f"all {len(groups)} groups of step {step} had equal rewards: {values}"
    return SpecProblem(
        Reason.NO_LEARNING_SIGNAL,
        "spec.rewards",
        f"There was nothing to learn from: {cause}. {cure}.",
        fatal=False,
    )


def idle_problem(idle_steps: int, last: str) -> SpecProblem:
    """Makes the problem of a job that ends because no step so far, the last `idle_steps` among them, had anything to learn from.

    `last` is the message about the last of them.
    """
    return SpecProblem(
        Reason.NO_LEARNING_SIGNAL,
        "spec.rewards",
        f"The job has learned nothing in {idle_steps} steps in a row (rounds.maxIdleSteps). Its last step is saved. {last}".rstrip(),
    )
