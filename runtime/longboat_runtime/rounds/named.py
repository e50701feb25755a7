"""The round policy that a job names. Pure."""

from __future__ import annotations

from fractions import Fraction

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_crds.rounds import MAX_STALENESS, PROMPT_OVERCOMMIT, SAMPLE_OVERCOMMIT, RoundPolicyName
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.one_quota import OneQuota
from longboat_runtime.rounds.overcommit import phases
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching


def races_of_a_period(spec: RLJobSpec) -> int:
    """Short rounds between two long ones: 1 / (promptOvercommit - 1), at least one. 0 where there never is a long one."""
    surplus = (spec.rounds.prompt_overcommit or PROMPT_OVERCOMMIT) - 1
    if spec.rounds.policy is not RoundPolicyName.TAIL_BATCHING or surplus <= 0:
        return 0
    return max(1, round(1 / surplus))


def open_policy(spec: RLJobSpec) -> Policy:
    """`spec.rounds.policy` with its knobs; those that hold quotas, for each quota apart."""
    rounds, algorithm = spec.rounds, resolve(spec.algorithm)
    size = rounds.steps, rounds.prompts_per_round, algorithm.group_size
    match rounds.policy:
        case RoundPolicyName.CONTINUE_UNFINISHED:
            overcommit = rounds.prompt_overcommit or PROMPT_OVERCOMMIT
            return ContinueUnfinished(*size, overcommit, algorithm.drop_zero_variance)
        case RoundPolicyName.BOUNDED_ASYNC:
            return BoundedAsync(*size, rounds.max_staleness or MAX_STALENESS, algorithm.drop_zero_variance)
    if not rounds.quotas:
        return _one_quota(spec, rounds.prompts_per_round)
    turns = phases(len(rounds.quotas))
    rules = {q.domain: _one_quota(spec, q.prompts, phase) for q, phase in zip(rounds.quotas, turns, strict=True)}
    return ByDomain(*size, rules)


def open_with(spec: RLJobSpec, factor: float, steps: int) -> Policy:
    """The job's policy with another factor and number of steps, to see what it takes; without audits, which are the same with any."""
    rounds = {"prompt_overcommit": factor, "steps": steps, "audit_every": None}
    return open_policy(spec.model_copy(update={"rounds": spec.rounds.model_copy(update=rounds)}))


def _one_quota(spec: RLJobSpec, prompts: int, phase: Fraction = Fraction(0)) -> OneQuota:
    """The rule for so many prompts a round; `phase` as in `overcommit.overcommitted`."""
    rounds, algorithm = spec.rounds, resolve(spec.algorithm)
    size = rounds.steps, prompts, algorithm.group_size
    if rounds.policy is RoundPolicyName.SYNCHRONOUS:
        return Synchronous(*size, algorithm.drop_zero_variance)
    return TailBatching(
        *size,
        prompt_overcommit=rounds.prompt_overcommit or PROMPT_OVERCOMMIT,
        sample_overcommit=rounds.sample_overcommit or SAMPLE_OVERCOMMIT,
        drop_zero_variance=algorithm.drop_zero_variance,
        audit_every=rounds.audit_every,
        phase=phase,
    )
