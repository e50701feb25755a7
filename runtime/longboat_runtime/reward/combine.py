"""Combines the outcomes of several reward functions into one grade. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.samples import Grade, GradeKind, GradeTime, TimeLimit

# No score times its weight is larger: squares of sums of such numbers are finite.
LARGEST = 1e30
# The worst kind among the parts is the kind of the grade.
_WORST_FIRST = (OutcomeKind.GRADER_ERROR, OutcomeKind.TIMEOUT, OutcomeKind.WRONG_FORMAT, OutcomeKind.SCORED)


def applicable(rewards: Sequence[RewardSpec], domain: str) -> list[RewardSpec]:
    """Lists the functions for rows of `domain`; a function without domains applies to all rows."""
    return [reward for reward in rewards if not reward.domains or domain in reward.domains]


def combine(rewards: Sequence[RewardSpec], outcomes: Mapping[str, FunctionOutcome]) -> Grade:
    """Makes the grade whose score is the weighted sum of the functions' scores; `outcomes` has one for each of `rewards`, by name.

    A grader error gives a grader error with score 0, as does a weighted score beyond LARGEST. Else a timeout makes it a timeout:
    functions that timed out have None in `parts`; they count with their `timeoutScore`, or as in `batch_rewards` if they have none.
    Functions that don't apply are left out. If none applies, the grade is NOT_APPLICABLE; if none exists for the row, it is a grader error.
    """
    counted = [(reward, outcomes[reward.name]) for reward in rewards]
    counted = [(reward, outcome) for reward, outcome in counted if outcome.kind is not OutcomeKind.NOT_APPLICABLE]
    if rewards and not counted:
        return Grade(GradeKind.NOT_APPLICABLE, 0.0, sum(outcome.seconds for outcome in outcomes.values()))
    if not counted:
        return Grade(
            GradeKind.GRADER_ERROR, 0.0, 0.0, "no reward function applies to this row: add one without `domains`"
        )
    present = {outcome.kind for _, outcome in counted}
    kind = next((kind for kind in _WORST_FIRST if kind in present), OutcomeKind.GRADER_ERROR)
    seconds = sum(outcome.seconds for _, outcome in counted)
    message = "; ".join(f"{reward.name}: {outcome.message}" for reward, outcome in counted if outcome.message)
    parts = {
        reward.name: None if outcome.kind is OutcomeKind.TIMEOUT else outcome.score
        for reward, outcome in counted
        if outcome.kind is not OutcomeKind.GRADER_ERROR
    }
    if kind is OutcomeKind.GRADER_ERROR:
        return Grade(GradeKind.GRADER_ERROR, 0.0, seconds, message, parts)
    # The scores that are known before the batch is: a timeout without `timeoutScore` has none.
    part_scores = [
        (reward, reward.timeout_score if parts[reward.name] is None else parts[reward.name]) for reward, _ in counted
    ]
    weighted = {reward.name: reward.weight * (part or 0.0) for reward, part in part_scores}
    if too_large := [f"{name}: {value:g}" for name, value in weighted.items() if not abs(value) <= LARGEST]:
        message = f"{'; '.join(too_large)}: score times weight exceeds {LARGEST:g} in magnitude"
        return Grade(GradeKind.GRADER_ERROR, 0.0, seconds, message, {})
    score = sum(weighted.values())
    metrics = {f"{reward.name}/{key}": value for reward, outcome in counted for key, value in outcome.metrics.items()}
    return Grade(GradeKind(kind.value), score, seconds, message, parts, metrics=metrics)


def own_seconds(rewards: Sequence[RewardSpec], limits: Mapping[str, TimeLimit] | None) -> dict[str, float]:
    """Returns the limits of own seconds, by name of those functions whose timeouts are learned: the hard one where no other holds."""
    return {
        reward.name: reward.timeout_seconds if (limit := time_limit.in_force) is None else limit
        for reward in rewards
        if (time_limit := (limits or {}).get(reward.name)) is not None
    }


def grade_times(outcomes: Mapping[str, FunctionOutcome], limits: Mapping[str, TimeLimit]) -> dict[str, GradeTime]:
    """Returns what the functions whose timeouts are learned took, by name.

    Left out are those that failed or don't apply, whose times are meaningless, and those without `own_seconds`.
    """
    nothing = (OutcomeKind.GRADER_ERROR, OutcomeKind.NOT_APPLICABLE)
    return {
        name: GradeTime(own, outcome.cpu_seconds, limits[name].seconds, limits[name].audit, outcome.limited)
        for name, outcome in outcomes.items()
        if name in limits and outcome.kind not in nothing and (own := outcome.own_seconds) is not None
    }


def unscored(rewards: Sequence[RewardSpec]) -> frozenset[str]:
    """Names the functions without `timeoutScore`: what their timeouts count is known only with the batch (`batch_rewards`)."""
    return frozenset(reward.name for reward in rewards if reward.timeout_score is None)


class Graded(Protocol):
    """A grade, or a sample that has one."""

    @property
    def kind(self) -> GradeKind | None: ...

    @property
    def score(self) -> float: ...

    @property
    def parts(self) -> Mapping[str, float | None]: ...


def batch_rewards(rewards: Sequence[RewardSpec], graded: Sequence[Graded]) -> list[float | None]:
    """Computes the reward of each sample of a batch: its score, plus a value for each function without `timeoutScore` that timed out on it.

    It is None for a sample to which no function applies.

    That value is the least that the function added to any sample of the batch (weight x score), but at most 0. So on any scale a
    response that takes too long to grade gets no more from the function than any other response in the batch. The scores of
    its other functions count in full. The order of the samples changes no reward.
    """
    names = unscored(rewards)
    least = {
        reward.name: min([0.0, *(reward.weight * (grade.parts.get(reward.name) or 0.0) for grade in graded)])
        for reward in rewards
        if reward.name in names
    }
    return [
        None
        if grade.kind is GradeKind.NOT_APPLICABLE
        else grade.score + sum(least.get(name, 0.0) for name, score in grade.parts.items() if score is None)
        for grade in graded
    ]
