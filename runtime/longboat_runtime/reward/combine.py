"""Several reward functions make one grade. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.outcome import Outcome, OutcomeKind
from longboat_runtime.samples import Grade, GradeKind

# The worst kind of the parts is the kind of the whole.
_WORST_FIRST = (OutcomeKind.GRADER_ERROR, OutcomeKind.TIMEOUT, OutcomeKind.WRONG_FORMAT, OutcomeKind.SCORED)


def applicable(rewards: Sequence[RewardSpec], domain: str) -> list[RewardSpec]:
    """The functions for rows of `domain`; a function without domains is for all."""
    return [reward for reward in rewards if not reward.domains or domain in reward.domains]


def combine(rewards: Sequence[RewardSpec], outcomes: Mapping[str, Outcome]) -> Grade:
    """The weighted sum of the functions' scores (outcomes by reward name).

    A grader error makes the whole a grader error, a timeout makes it a timeout: half a reward is not a reward. Functions that
    don't apply are left out; if none applies that is an error of the job's rewards, told as a grader error.
    """
    counted = [(reward, outcomes[reward.name]) for reward in rewards]
    counted = [(reward, outcome) for reward, outcome in counted if outcome.kind is not OutcomeKind.NOT_APPLICABLE]
    if not counted:
        return Grade(
            GradeKind.GRADER_ERROR, 0.0, 0.0, "no reward function applies to this row: add one without `domains`"
        )
    kind = next(kind for kind in _WORST_FIRST if any(outcome.kind is kind for _, outcome in counted))
    scored = kind in (OutcomeKind.SCORED, OutcomeKind.WRONG_FORMAT)
    return Grade(
        kind=GradeKind(kind.value),
        score=sum(reward.weight * outcome.score for reward, outcome in counted) if scored else 0.0,
        seconds=sum(outcome.seconds for _, outcome in counted),
        message="; ".join(f"{reward.name}: {outcome.message}" for reward, outcome in counted if outcome.message),
        parts={
            reward.name: outcome.score
            for reward, outcome in counted
            if outcome.kind in (OutcomeKind.SCORED, OutcomeKind.WRONG_FORMAT)
        },
    )
