"""Which promptOvercommit costs the fewest rollout seconds: each candidate's periods, simulated. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from longboat_runtime.rounds.audit.completion import complete
from longboat_runtime.rounds.audit.first_launches import together
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.lengths import FirstLaunchLaw, LengthLaw
from longboat_runtime.simulate.outcome import Outcome
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site

# Rounds of a period, the long one included, with each factor that may be chosen.
PERIODS = {1.0: 1, 1.125: 9, 1.25: 5, 1.5: 3}
# Samples that all simulated runs together train: some 4 s of one CPU.
SAMPLES = 32_000
# At most so many rounds of each candidate: what more would show is less than what the law of lengths is uncertain by.
ROUNDS = 45
# Factors whose rounds take this much longer than the fastest are as good: then the smallest throws least away.
TIE = 0.01


@dataclass(frozen=True, slots=True)
class Choice:
    """`predicted` are mean rollout seconds of a round by factor, of all that were tried."""

    factor: float
    predicted: Mapping[float, float]
    reason: str


def choose(
    prompts: Sequence[PromptLengths],
    longest: int,
    site: Site,
    *,
    prompts_per_round: int,
    group_size: int,
    sample_overcommit: float,
    kv_tokens: int,
) -> Choice:
    """The factor of PERIODS that minimises (n_short T_short + T_long) / (n_short + 1), the mean of a period's rounds.

    Lengths follow the audit's law of first launches of `prompts` (none longer than `longest`), steps the site's curve. A
    factor above 1 is out if an engine would hold more than `kv_tokens` at a time: preempted sequences are computed again,
    and that takes more than what racing saves. Raises ValueError without a prompt.
    """
    domains: dict[str, list[PromptLengths]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    launched = together([complete(members, longest) for members in domains.values()])
    law = FirstLaunchLaw.of(launched, group_size)
    rounds = min(ROUNDS, SAMPLES // (len(PERIODS) * prompts_per_round * group_size))
    outcomes = {
        factor: _run(factor, rounds, site, law, prompts_per_round, group_size, sample_overcommit) for factor in PERIODS
    }
    predicted = {factor: outcome.rollout_per_round for factor, outcome in outcomes.items()}
    fits = {factor for factor, outcome in outcomes.items() if factor == 1 or outcome.tokens_most <= kv_tokens}
    fastest = min(predicted[factor] for factor in fits)
    factor = min(factor for factor in fits if predicted[factor] <= (1 + TIE) * fastest)
    return Choice(factor, predicted, _reason(factor, outcomes, fits, kv_tokens))


def _run(
    factor: float,
    rounds: int,
    site: Site,
    law: LengthLaw,
    prompts_per_round: int,
    group_size: int,
    sample_overcommit: float,
) -> Outcome:
    """Whole periods, at least one; the end of the job, where the queue is drained, is not in sight."""
    period = PERIODS[factor]
    count = max(1, rounds // period) * period
    policy = TailBatching(count * 4, prompts_per_round, group_size, factor, sample_overcommit)
    return simulate(policy, group_size, site, law, most_steps=count)


def _reason(factor: float, outcomes: Mapping[float, Outcome], fits: set[float], kv_tokens: int) -> str:
    """Such as `1.25: 3.1 s a round (1: 4.0, 1.125: 3.3, 1.5: 3.4)`."""
    others = (f"{other:g}: {_seconds(outcomes[other])}" for other in PERIODS if other != factor)
    full = (
        f"{other:g} would need {outcomes[other].tokens_most} tokens of an engine's KV cache of {kv_tokens}"
        for other in PERIODS
        if other not in fits
    )
    return "; ".join(chain([f"{factor:g}: {_seconds(outcomes[factor])} s a round ({', '.join(others)})"], full))


def _seconds(outcome: Outcome) -> str:
    return format(outcome.rollout_per_round, ".3g")
