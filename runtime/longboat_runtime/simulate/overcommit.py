"""Which promptOvercommit costs the fewest rollout seconds: each candidate's periods, simulated on many likely windows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from longboat_runtime.rounds.audit.first_launches import complete, together
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.simulate.lengths import FirstLaunchDistribution
from longboat_runtime.simulate.simulation import SimulatedRun, simulate
from longboat_runtime.simulate.site import Site

# Rounds of a period, the long one included, with each factor that may be chosen. Without a race there are no periods: then enough
# rounds for a reliable mean.
PERIODS = {1.0: 5, 1.125: 9, 1.25: 5, 1.5: 3}
# Windows that the observed one is resampled to.
WINDOWS = 8
# Samples that all simulated runs together train, unless that is less than a period of each: some 8 s of one CPU.
SAMPLES = 64_000
# At most so many rounds of each candidate in each window.
ROUNDS = 18
# Factors whose rounds take this much longer than the fastest count as equal: the smallest of them wastes least.
TIE = 0.01
# The present factor stays unless another is faster by so many standard errors: chance alone does that one time in ten (Student's t,
# 7 degrees).
SURE = 1.415


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
    policy: Callable[[float], Policy],
    *,
    present: float,
    prompts_per_round: int,
    group_size: int,
    kv_tokens: int | None = None,
) -> Choice:
    """The factor of PERIODS that minimises (n_short T_short + T_long) / (n_short + 1), the mean of a period's rounds.

    Among equals `pick` chooses. `policy(factor)` is the job's own with that factor. Lengths follow the
    audit's distribution of first launches of `prompts` (none longer than `longest`), that of their domain where the policy draws by domain;
    steps follow the site's curve. A long round's seconds depend on few prompts, so windows differ a lot from each other:
    several are made from this one by resampling prompts, and all factors are compared on the same ones. A site with a curve has
    KV memory without end, so there a factor above 1 is out if an engine would hold more than `kv_tokens` at a time: preempted
    sequences are computed again, which costs more than racing saves. A site with shapes has that in its seconds, reshapes are beside
    them. Raises ValueError without a prompt.
    """
    rounds = min(ROUNDS, SAMPLES // (WINDOWS * len(PERIODS) * prompts_per_round * group_size))
    outcomes: dict[float, list[SimulatedRun]] = {factor: [] for factor in PERIODS}
    for number in range(WINDOWS):
        window = _Window.of(_resampled(prompts, number), longest, group_size, number)
        for factor, period in PERIODS.items():
            # Whole periods, at least one; the end of the job, where the queue is drained, is not in sight.
            steps = max(1, rounds // period) * period
            outcomes[factor].append(
                simulate(policy(factor), group_size, site, window, 4 * steps, source=window.draw, most_steps=steps)
            )
    seconds = {factor: [outcome.rollout_per_round for outcome in found] for factor, found in outcomes.items()}
    tokens = {factor: max(outcome.tokens_most for outcome in found) for factor, found in outcomes.items()}
    fits = {factor for factor, most in tokens.items() if factor == 1 or kv_tokens is None or most <= kv_tokens}
    factor = pick({factor: seconds[factor] for factor in fits}, present)
    predicted = {factor: fmean(found) for factor, found in seconds.items()}
    fastest = min(fits, key=lambda other: predicted[other])
    doubt = [f"{fastest:g} may be faster by chance"] if predicted[factor] > (1 + TIE) * predicted[fastest] else []
    full = [
        f"{other:g} would need {tokens[other]} tokens of an engine's KV cache of {kv_tokens}"
        for other in PERIODS
        if other not in fits
    ]
    preempted = sum(outcome.preemptions for outcome in outcomes[factor]) / sum(len(of.steps) for of in outcomes[factor])
    felt = [f"{preempted:.3g} preemptions a round"] if preempted else []
    return Choice(factor, predicted, "; ".join([_reason(factor, predicted), *doubt, *full, *felt]))


def pick(seconds: Mapping[float, Sequence[float]], present: float) -> float:
    """The factor to continue with, given how long a round takes with each factor in each of the same windows.

    The smallest whose mean is within TIE of the fastest one's; but `present` stays unless it is slower than that one by SURE
    standard errors of the difference, or that one is 1: nothing races without need.
    """
    means = {factor: fmean(found) for factor, found in seconds.items()}
    fastest = min(means.values())
    factor = min(factor for factor, mean in means.items() if mean <= (1 + TIE) * fastest)
    if factor == 1 or present not in seconds:
        return factor
    saved = [before - after for before, after in zip(seconds[present], seconds[factor], strict=True)]
    return factor if fmean(saved) > SURE * stdev(saved) else present


def _resampled(prompts: Sequence[PromptLengths], number: int) -> list[PromptLengths]:
    """As many, drawn with replacement (bootstrap, Efron 1979)."""
    return [prompts[drawn] for drawn in np.random.default_rng(number).integers(0, len(prompts), len(prompts))]


def _reason(factor: float, predicted: Mapping[float, float]) -> str:
    """Such as `1.25: 3.1 s a round (1: 4.0, 1.125: 3.3, 1.5: 3.4)`."""
    others = ", ".join(f"{other:g}: {seconds:.3g}" for other, seconds in predicted.items() if other != factor)
    return f"{factor:g}: {predicted[factor]:.3g} s a round ({others})"


@dataclass(frozen=True, slots=True)
class _Window:
    """Prompts as those of an audited window: of each domain of `names` by its own distribution, and by that of all, which is the last.

    A prompt's epoch is the number of its distribution.
    """

    names: Sequence[str]
    distributions: Sequence[FirstLaunchDistribution]

    @classmethod
    def of(cls, prompts: Sequence[PromptLengths], longest: int, group_size: int, seed: int) -> _Window:
        domains: dict[str, list[PromptLengths]] = {}
        for prompt in prompts:
            domains.setdefault(prompt.domain, []).append(prompt)
        launched = [complete(members, longest) for members in domains.values()]
        return cls(
            [*domains],
            [FirstLaunchDistribution.of(of, group_size, seed=seed) for of in (*launched, together(launched))],
        )

    def __call__(self, sample: SampleId) -> int:
        return self.distributions[sample.epoch](sample)

    def draw(self, drawn: int, count: int, domain: str) -> list[PromptId]:
        """A domain that the window doesn't have is drawn like the whole."""
        distribution = self.names.index(domain) if domain and domain in self.names else len(self.names)
        return [PromptId(distribution, row) for row in range(drawn, drawn + count)]
