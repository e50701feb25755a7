"""Simulates a recorded job with several values of promptOvercommit, on resampled windows of its prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longboat_runtime.rounds.audit.first_launches import complete, together
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.rules import phases
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import FirstLaunchDistribution
from longboat_runtime.simulate.recording import Recording
from longboat_runtime.simulate.simulation import SimulatedRun, simulate
from longboat_runtime.simulate.site import Site

# Rounds of a period, including the long one, by factor. A factor of 1 has no periods, but needs enough rounds for a reliable mean.
PERIODS = {1.0: 5, 1.125: 9, 1.25: 5, 1.5: 3}
# How many windows are resampled from the recorded one.
WINDOWS = 8
# All simulated runs together train at most this many samples, or a period each if that is more. That takes some 8 s of one CPU.
SAMPLES = 64_000
# At most this many rounds of each factor are simulated in each window.
ROUNDS = 18
# The capacity of an engine in which no sample ever waited.
UNLIMITED = 2**31


def simulate_factors(recording: Recording) -> dict[float, list[SimulatedRun]]:
    """Simulates whole periods with each factor of PERIODS, in each of WINDOWS windows.

    A long round's seconds depend on few prompts, so one window isn't enough. Several are resampled from the recorded one by drawing its
    prompts with replacement, and all factors are compared on the same windows. Lengths follow the audit's distribution of first launches,
    by domain where rounds have quotas. Steps take the measured seconds, and KV memory is unlimited.
    """
    site = Site(
        StepCurve.from_observed(recording.step_times),
        engines=recording.rounds[-1].engines,
        max_sequences=recording.max_sequences or UNLIMITED,
        prompt_tokens=recording.prompt_tokens,
        flat=recording.flat,
    )
    prompts, group_size = sum(recording.quotas.values()), recording.group_size
    rounds = min(ROUNDS, SAMPLES // (WINDOWS * len(PERIODS) * prompts * group_size))
    runs: dict[float, list[SimulatedRun]] = {factor: [] for factor in PERIODS}
    for number in range(WINDOWS):
        window = _Window.from_prompts(_resampled(recording.prompts, number), recording.longest, group_size, number)
        for factor, period in PERIODS.items():
            # The job is longer than what is simulated, so that the queue isn't drained at the end.
            steps = max(1, rounds // period) * period
            policy = _policy(recording, factor)
            runs[factor].append(
                simulate(policy, group_size, site, window, 4 * steps, source=window.draw, most_steps=steps)
            )
    return runs


def _policy(recording: Recording, factor: float) -> Policy:
    quotas, group_size = recording.quotas, recording.group_size
    rules = {
        domain: TailBatching(prompts, group_size, factor, 1.0, recording.flat > 0, phase=phase)
        for (domain, prompts), phase in zip(quotas.items(), phases(len(quotas)), strict=True)
    }
    return ByDomain(sum(quotas.values()), group_size, rules) if len(rules) > 1 else next(iter(rules.values()))


def _resampled(prompts: Sequence[PromptLengths], number: int) -> list[PromptLengths]:
    """Draws as many prompts with replacement (bootstrap, Efron 1979)."""
    return [prompts[drawn] for drawn in np.random.default_rng(number).integers(0, len(prompts), len(prompts))]


@dataclass(frozen=True, slots=True)
class _Window:
    """Draws prompts and lengths from the distributions of an audited window: one for each domain of `names`, then one of all prompts.

    A prompt's epoch is the number of its distribution.
    """

    names: Sequence[str]
    distributions: Sequence[FirstLaunchDistribution]

    @classmethod
    def from_prompts(cls, prompts: Sequence[PromptLengths], longest: int, group_size: int, seed: int) -> _Window:
        domains: dict[str, list[PromptLengths]] = {}
        for prompt in prompts:
            domains.setdefault(prompt.domain, []).append(prompt)
        launched = [complete(members, longest) for members in domains.values()]
        return cls(
            [*domains],
            [
                FirstLaunchDistribution.from_launches(part, group_size, seed=seed)
                for part in (*launched, together(launched))
            ],
        )

    def __call__(self, sample: SampleId) -> int:
        return self.distributions[sample.epoch](sample)

    def draw(self, drawn: int, count: int, domain: str) -> list[PromptId]:
        """Draws prompts. For a domain that the window lacks, the distribution of all prompts stands in."""
        distribution = self.names.index(domain) if domain and domain in self.names else len(self.names)
        return [PromptId(distribution, row) for row in range(drawn, drawn + count)]
