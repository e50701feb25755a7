"""Which promptOvercommit costs the fewest rollout seconds: each candidate's periods, simulated. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

from longboat_runtime.rounds.audit.completion import complete
from longboat_runtime.rounds.audit.first_launches import together
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.simulate.lengths import FirstLaunchLaw
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
# The present factor stays unless another is so much faster: windows of a period or two differ by more than that by chance.
CLEARLY = 0.03


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
    policy: Callable[[float, int], Policy],
    *,
    present: float,
    prompts_per_round: int,
    group_size: int,
    kv_tokens: int,
) -> Choice:
    """The factor of PERIODS that minimises (n_short T_short + T_long) / (n_short + 1), the mean of a period's rounds.

    Among equals `pick` decides. `policy(factor, steps)` is the job's own with that factor and number of steps. Lengths follow the
    audit's law of first launches of `prompts` (none longer than `longest`), that of their domain where the policy draws by domain;
    steps follow the site's curve. A factor above 1 is out if an engine would hold more than `kv_tokens` at a time: preempted
    sequences are computed again, and that takes more than what racing saves. Raises ValueError without a prompt.
    """
    window = _Window.of(prompts, longest, group_size)
    rounds = min(ROUNDS, SAMPLES // (len(PERIODS) * prompts_per_round * group_size))
    outcomes = {}
    for factor, period in PERIODS.items():
        # Whole periods, at least one; the end of the job, where the queue is drained, is not in sight.
        steps = max(1, rounds // period) * period
        outcomes[factor] = simulate(
            policy(factor, 4 * steps), group_size, site, window, source=window.draw, most_steps=steps
        )
    predicted = {factor: outcome.rollout_per_round for factor, outcome in outcomes.items()}
    fits = {factor for factor, outcome in outcomes.items() if factor == 1 or outcome.tokens_most <= kv_tokens}
    factor = pick({factor: predicted[factor] for factor in fits}, present)
    return Choice(factor, predicted, _reason(factor, outcomes, fits, kv_tokens))


def pick(predicted: Mapping[float, float], present: float) -> float:
    """The smallest factor within TIE of the fastest; but the `present` one if that is within CLEARLY of it, unless nothing needs to race."""
    fastest = min(predicted.values())
    factor = min(factor for factor, seconds in predicted.items() if seconds <= (1 + TIE) * fastest)
    stays = factor > 1 and predicted.get(present, inf) <= (1 + CLEARLY) * fastest
    return present if stays else factor


@dataclass(frozen=True, slots=True)
class _Window:
    """Prompts as those of an audited window: of each domain of `names` by its own law, and by that of all, which is the last.

    The number of its law stands in the place of a prompt's epoch.
    """

    names: Sequence[str]
    laws: Sequence[FirstLaunchLaw]

    @classmethod
    def of(cls, prompts: Sequence[PromptLengths], longest: int, group_size: int) -> _Window:
        domains: dict[str, list[PromptLengths]] = {}
        for prompt in prompts:
            domains.setdefault(prompt.domain, []).append(prompt)
        launched = [complete(members, longest) for members in domains.values()]
        return cls([*domains], [FirstLaunchLaw.of(of, group_size) for of in (*launched, together(launched))])

    def __call__(self, sample: SampleId) -> int:
        return self.laws[sample.epoch](sample)

    def draw(self, drawn: int, count: int, domain: str) -> list[PromptId]:
        """Of a domain that the window doesn't have as of all."""
        law = self.names.index(domain) if domain and domain in self.names else len(self.names)
        return [PromptId(law, row) for row in range(drawn, drawn + count)]


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
