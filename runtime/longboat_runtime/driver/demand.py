"""Computes what the driver asks for: how many rollout pods, and which it would give back first; and CPUs of reward pools. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from longboat_crds.environments import EnvironmentPoolSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.rounds import MAX_STALENESS, PROMPT_OVERCOMMIT, RoundPolicyName
from longboat_crds.status import (
    LINE_LENGTH,
    EnvironmentDemand,
    PoolCpuDemand,
    PoolDemand,
    RewardDemand,
    RewardGrant,
    RolloutDemand,
)
from longboat_runtime.episodes.protocol import EpisodePod, EpisodeState
from longboat_runtime.reward.cpus import Division, differs
from longboat_runtime.rollout.load import PodLoad
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId


def give_first(pods: Mapping[str, PodLoad]) -> list[str]:
    """Sorts the pods by what giving them back costs: first those that serve nothing, then those with the least under way.

    Equal ones go by name, the last first: the operator fills the lowest numbers first.
    """
    return sorted(sorted(pods, reverse=True), key=lambda pod: (pods[pod].serving > 0, pods[pod].running))


def next_demand(
    before: RolloutDemand | None,
    incarnation: int,
    replicas: int,
    pods: Mapping[str, PodLoad],
    drained: Sequence[str],
) -> RolloutDemand:
    """Makes the demand of this incarnation that follows `before`, for so many `replicas`; `pods` are there, `drained` may be deleted.

    The rule: it gets the next number if another number of pods is asked for or `drained` has changed. The order of `give_first` is taken
    anew then, and when pods have come or gone. Otherwise it is `before`: what runs where changes all the time, and is no reason to ask
    again.
    """
    ask = replicas, [*drained] or None
    same = before is not None and (before.replicas, before.drained) == ask
    if before is not None and same and set(before.give_first or ()) == pods.keys():
        return before
    return RolloutDemand(
        incarnation=incarnation,
        number=(before.number if before else 0) + (not same),
        replicas=replicas,
        give_first=give_first(pods) or None,
        drained=ask[1],
        reason=f"rollout.replicas is {replicas}"[:LINE_LENGTH],
    )


def most_episodes(spec: RLJobSpec, held_out: int) -> int:
    """Returns the most episodes that the job plays at once. `held_out` is the number of held-out rows.

    Rule: those of all rounds that are open, with the promptOvercommit of TailBatching, or those of an evaluation if they are more: it is made
    between rounds. Pure.
    """
    rounds, evaluation = spec.rounds, spec.dataset.evaluation
    prompts, ahead = rounds.prompts_per_round, 0
    if rounds.policy is RoundPolicyName.TAIL_BATCHING:
        prompts = math.ceil(prompts * (rounds.prompt_overcommit or PROMPT_OVERCOMMIT))
    elif rounds.policy is RoundPolicyName.BOUNDED_ASYNC:
        ahead = rounds.max_staleness or MAX_STALENESS
    evaluated = held_out * evaluation.samples_per_prompt if evaluation else 0
    return max(prompts * spec.algorithm.group_size * (1 + ahead), evaluated)


def next_environment_demand(
    before: EnvironmentDemand | None,
    incarnation: int,
    pools: Sequence[EnvironmentPoolSpec],
    episodes: int,
    state: EpisodeState,
    drained: Mapping[str, Sequence[str]],
) -> EnvironmentDemand:
    """Makes the demand of this incarnation that follows `before`; of each pool's pods `drained` may be deleted.

    The rule: each pool is asked for as many pods as play `episodes` at once, at most its `replicas`. The demand gets the next number if it
    asks for something else or other pods are drained.
    """
    earlier = {pool.name: pool for pool in before.pools or ()} if before else {}
    demands = []
    for pool in pools:
        pods = {name: pod for name, pod in state.pods.items() if pod.pool == pool.name}
        demands.append(
            _pool_demand(earlier.get(pool.name), pool, episodes, pods, [*drained.get(pool.name, ())] or None)
        )
    if before is not None and before.pools == demands:
        return before
    asks = [[(pool.replicas, pool.drained) for pool in each] for each in (earlier.values(), demands)]
    number = (before.number if before else 0) + (before is None or asks[0] != asks[1])
    return EnvironmentDemand(incarnation=incarnation, number=number, pools=demands)


def _pool_demand(
    before: PoolDemand | None,
    pool: EnvironmentPoolSpec,
    episodes: int,
    pods: Mapping[str, EpisodePod],
    drained: list[str] | None,
) -> PoolDemand:
    """Makes the demand for a pool's pods; `pods` are those that have joined.

    Rule: `give_first` names only as many as there are too many, since no more are taken back. It stays the same while that number does and
    these pods are there: where episodes are played changes all the time.
    """
    replicas = min(pool.replicas, -(-episodes // pool.at_once))
    surplus = max(0, len(pods) - replicas)
    if before and (before.replicas, before.drained) == (replicas, drained):
        named = before.give_first or ()
        if len(named) == surplus and pods.keys() >= {*named}:
            return before
    reason = (
        f"environmentPools[name={pool.name}].replicas is {replicas}"
        if replicas == pool.replicas
        else f"at most {episodes} episodes are played at once, {pool.at_once} in a pod"
    )
    return PoolDemand(
        name=pool.name,
        replicas=replicas,
        give_first=_idle_first(pods)[:surplus] or None,
        drained=drained,
        reason=reason[:LINE_LENGTH],
    )


def _idle_first(pods: Mapping[str, EpisodePod]) -> list[str]:
    """Sorts pods as `give_first` does: by what giving them back costs."""
    return sorted(sorted(pods, reverse=True), key=lambda pod: (pods[pod].serving, pods[pod].playing))


def next_cpu_demand(
    before: RewardDemand | None, incarnation: int, granted: Mapping[str, int], division: Division
) -> RewardDemand | None:
    """Makes the demand of this incarnation that follows `before`, for this division of CPUs.

    The rule: it gets the next number if some pool asks for at least `cpus.LEAST_MOVE` more or less than it did, else it is `before`.
    While that is None, the division is compared with what is `granted`; the result is None too if no pool differs by so much.
    """
    requested = granted if before is None else asked_cpus(before)
    if not differs(requested, division.pools):
        return before
    return RewardDemand(
        incarnation=incarnation,
        number=(before.number if before else 0) + 1,
        pools=[
            PoolCpuDemand(name=name, cpu=cpu_quantity(cpu), reason=division.reasons[name][:LINE_LENGTH])
            for name, cpu in division.pools.items()
        ],
        reason=division.reason[:LINE_LENGTH],
    )


def asked_cpus(division: RewardDemand | RewardGrant) -> dict[str, int]:
    """Returns the millicores of each pool, by name."""
    return {pool.name: millicores(pool.cpu) for pool in division.pools or ()}


def expected_grades(view: View, prompts: int, pools_of: Callable[[PromptId], Collection[str]]) -> dict[str, float]:
    """Estimates how many of the responses that engines are generating now each pool, by name, will have to grade.

    `prompts` is the number of prompts that a round trains; `pools_of` returns the pools that grade the responses to a prompt. A group
    needs only `groupSize` responses, and a racing round only as many groups as it trains. Nobody knows which groups, so each counts in
    part.
    """
    grades: dict[str, float] = {}
    for round_ in view.open_rounds():
        unfinished = [prompt for prompt in round_.groups if prompt not in round_.completed]
        missing = max(0, prompts - len(round_.completed))
        share = min(1.0, missing / len(unfinished)) if round_.racing and unfinished else 1.0
        for prompt in unfinished:
            group = view.groups[prompt]
            running = sum(sample.state is SampleState.RUNNING for sample in group.samples)
            due = share * min(running, view.group_size - len(group.counted))
            for pool in pools_of(prompt):
                grades[pool] = grades.get(pool, 0.0) + due
    return grades
