"""What rewards make of an episode: those of kind Episode take what its environment returned. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.samples import EpisodeEnd, EpisodeOutcome


def by_environment(reward: RewardSpec) -> bool:
    """Whether the environment says what a sample gets from this reward, so that no pool grades it."""
    return reward.kind is RewardKind.EPISODE


def with_episode(
    rewards: Sequence[RewardSpec], outcomes: Mapping[str, FunctionOutcome], episode: EpisodeOutcome | None
) -> dict[str, FunctionOutcome]:
    """Returns the outcomes of all of `rewards`, those for a row; `outcomes` has those that graders gave.

    Rule: a reward of kind Episode is what the environment returned. It doesn't apply if that was nothing, so that the others grade the
    sample; then one of the others has to. It is a timeout if the episode reached its deadline. Without such a reward the deadline is a
    timeout of all: what an unfinished episode has so far isn't graded as if it were all. A sample without an episode has no such reward.
    """
    own = [reward.name for reward in rewards if by_environment(reward)]
    if episode is None:
        return {**outcomes, **dict.fromkeys(own, FunctionOutcome(OutcomeKind.NOT_APPLICABLE))}
    if episode.end is EpisodeEnd.TIMEOUT:
        timeout = FunctionOutcome(OutcomeKind.TIMEOUT, message=episode.message)
        return {**outcomes, **dict.fromkeys(own or [reward.name for reward in rewards], timeout)}
    if episode.reward is not None:
        return {**outcomes, **dict.fromkeys(own, FunctionOutcome(OutcomeKind.SCORED, episode.reward))}
    if own and len(own) == len(rewards):
        message = (
            f"environment {episode.environment} returned no reward, and no other reward applies to the row: have it return a number, or "
            "add a reward that grades its turns"
        )
        return dict.fromkeys(own, FunctionOutcome(OutcomeKind.GRADER_ERROR, message=message))
    return {**outcomes, **dict.fromkeys(own, FunctionOutcome(OutcomeKind.NOT_APPLICABLE))}
