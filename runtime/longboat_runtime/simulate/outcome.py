"""What a simulated run came to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds.events import RoundKind


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One optimizer step and the round that fed it; seconds since the commit before, or since the start.

    `rollout` are those in which samples ran, as the driver's stage `generate` counts them; `seconds` all of them. `trained` counts
    samples; tokens are of responses. `generated` are those that engines gave back since the step before, stopped ones included.
    """

    step: int
    kind: RoundKind
    rollout: float
    seconds: float
    trained: int
    generated: int
    kept: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """All steps of a run. `tokens_most` is what the sequences of one engine, prompts included, came to at most at one time."""

    steps: Sequence[SimulatedStep]
    tokens_most: int

    @property
    def rollout_per_sample(self) -> float:
        """Rollout seconds for each trained sample."""
        return sum(step.rollout for step in self.steps) / sum(step.trained for step in self.steps)

    @property
    def seconds_per_sample(self) -> float:
        """Seconds for each trained sample."""
        return sum(step.seconds for step in self.steps) / sum(step.trained for step in self.steps)

    @property
    def rollout_per_round(self) -> float:
        """Mean rollout seconds of a round."""
        return sum(step.rollout for step in self.steps) / len(self.steps)

    @property
    def generated_to_kept(self) -> float:
        """Response tokens made for each one trained."""
        return sum(step.generated for step in self.steps) / sum(step.kept for step in self.steps)

    @property
    def long_share(self) -> float:
        """Share of long rounds."""
        return sum(step.kind is RoundKind.LONG for step in self.steps) / len(self.steps)
