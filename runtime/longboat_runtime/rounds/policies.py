"""The round policy of a job, by its name in the spec. Pure."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import assert_never

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_crds.rounds import MAX_STALENESS, PROMPT_OVERCOMMIT, SAMPLE_OVERCOMMIT, RoundPolicyName
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.on_policy import OneQuota
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.rules import phases
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching


def races_per_period(spec: RLJobSpec) -> int:
    """Estimates the short rounds before each long one: 1 / (promptOvercommit - 1), rounded, at least 1. 0 if rounds form no periods."""
    surplus = (spec.rounds.prompt_overcommit or PROMPT_OVERCOMMIT) - 1
    if spec.rounds.policy is not RoundPolicyName.TAIL_BATCHING or surplus <= 0:
        return 0
    return max(1, round(1 / surplus))


def open_policy(spec: RLJobSpec) -> Policy:
    """Makes the policy `spec.rounds.policy`, with its parameters; one that supports quotas gets a rule for each quota, if there are any."""
    rounds, algorithm = spec.rounds, resolve(spec.algorithm)
    size = rounds.prompts_per_round, algorithm.group_size
    match rounds.policy:
        case RoundPolicyName.CONTINUE_UNFINISHED:
            overcommit = rounds.prompt_overcommit or PROMPT_OVERCOMMIT
            return ContinueUnfinished(*size, overcommit, algorithm.drop_zero_variance)
        case RoundPolicyName.BOUNDED_ASYNC:
            return BoundedAsync(*size, rounds.max_staleness or MAX_STALENESS, algorithm.drop_zero_variance)
        case RoundPolicyName.SYNCHRONOUS:
            return _by_quotas(spec, _synchronous)
        case RoundPolicyName.TAIL_BATCHING:
            return _by_quotas(spec, _tail_batching)
        case unknown:
            assert_never(unknown)


def _by_quotas(spec: RLJobSpec, rule: Callable[[RLJobSpec, int, Fraction], OneQuota]) -> Policy:
    """Makes `rule(spec, prompts, phase)` for all prompts of a round, or one for each quota."""
    rounds, algorithm = spec.rounds, resolve(spec.algorithm)
    if not rounds.quotas:
        return rule(spec, rounds.prompts_per_round, Fraction(0))
    turns = phases(len(rounds.quotas))
    rules = {q.domain: rule(spec, q.prompts, phase) for q, phase in zip(rounds.quotas, turns, strict=True)}
    return ByDomain(rounds.prompts_per_round, algorithm.group_size, rules)


def _synchronous(spec: RLJobSpec, prompts: int, phase: Fraction) -> OneQuota:
    """Makes the synchronous rule for `prompts` per round. It overcommits nothing, so `phase` doesn't matter."""
    del phase
    algorithm = resolve(spec.algorithm)
    return Synchronous(prompts, algorithm.group_size, algorithm.drop_zero_variance)


def _tail_batching(spec: RLJobSpec, prompts: int, phase: Fraction) -> OneQuota:
    """Makes the tail batching rule for `prompts` per round; `phase` as in `rules.overcommitted`."""
    rounds, algorithm = spec.rounds, resolve(spec.algorithm)
    return TailBatching(
        prompts,
        algorithm.group_size,
        prompt_overcommit=rounds.prompt_overcommit or PROMPT_OVERCOMMIT,
        sample_overcommit=rounds.sample_overcommit or SAMPLE_OVERCOMMIT,
        drop_zero_variance=algorithm.drop_zero_variance,
        audit_every=rounds.audit_every,
        phase=phase,
        episodes=spec.environments is not None,
    )
