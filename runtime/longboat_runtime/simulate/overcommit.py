"""Simulates a recorded job with each promptOvercommit, on several likely windows of its prompts. Pure."""

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

# Rounds of a period, the long one included, by factor. Without a race there are no periods: then enough rounds for a reliable mean.
PERIODS = {1.0: 5, 1.125: 9, 1.25: 5, 1.5: 3}
# The recorded window is resampled into this many.
WINDOWS = 8
# All simulated runs together train this many samples, or a period each if that is more: some 8 s of one CPU.
SAMPLES = 64_000
# At most this many rounds of each factor are simulated in each window.
ROUNDS = 18
# An engine that has never made a sample wait has room for as many as any round sends it.
ENDLESS = 2**31


def by_factor(recording: Recording) -> dict[float, list[SimulatedRun]]:
    """Simulates whole periods with each factor of PERIODS, in each of WINDOWS windows.

    A long round's seconds depend on few prompts, so windows differ a lot from each other: several are made of the recorded one by
    drawing its prompts with replacement, and all factors are compared on the same ones. Lengths follow the audit's distribution of first
    launches, that of their domain where rounds have quotas. Steps take what engines measured, and KV memory has no end.
    """
    site = Site(
        StepCurve.of(recording.step_times),
        engines=recording.rounds[-1].engines,
        max_sequences=recording.max_sequences or ENDLESS,
        prompt_tokens=recording.prompt_tokens,
        flat=recording.flat,
    )
    prompts, group_size = sum(recording.quotas.values()), recording.group_size
    rounds = min(ROUNDS, SAMPLES // (WINDOWS * len(PERIODS) * prompts * group_size))
    runs: dict[float, list[SimulatedRun]] = {factor: [] for factor in PERIODS}
    for number in range(WINDOWS):
        window = _Window.of(_resampled(recording.prompts, number), recording.longest, group_size, number)
        for factor, period in PERIODS.items():
            # Whole periods, at least one; the end of the job, where the queue is drained, is not in sight.
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
    """As many, drawn with replacement (bootstrap, Efron 1979)."""
    return [prompts[drawn] for drawn in np.random.default_rng(number).integers(0, len(prompts), len(prompts))]


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
            [FirstLaunchDistribution.of(part, group_size, seed=seed) for part in (*launched, together(launched))],
        )

    def __call__(self, sample: SampleId) -> int:
        return self.distributions[sample.epoch](sample)

    def draw(self, drawn: int, count: int, domain: str) -> list[PromptId]:
        """Draws prompts; a domain that the window doesn't have is drawn like the whole."""
        distribution = self.names.index(domain) if domain and domain in self.names else len(self.names)
        return [PromptId(distribution, row) for row in range(drawn, drawn + count)]
