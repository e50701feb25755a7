"""What turns a response into a grade, as the reward worker sees it."""

from __future__ import annotations

from typing import Protocol

from longboat_crds.rewards import RewardSpec
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.result import FunctionOutcome, RewardSample


class Grader(Protocol):
    """Grades responses by rewards of one kind. `client.GraderClient`, for functions, hands them to children in a sandbox.

    Calls run concurrently; a grader limits itself how many grades do.
    """

    async def load(self, reward: RewardSpec, field: str) -> SpecProblem | None:
        """Prepares for this reward, and returns what is wrong with it. `field` is its spec path. Raises GradersGone."""

    async def grade(self, reward: str, sample: RewardSample, seconds: float, seed: int) -> FunctionOutcome:
        """The outcome of the reward of this name. It is TIMEOUT after `seconds`; random numbers follow from `seed` (31 bits)."""

    async def close(self) -> None:
        """Gives up what is under way."""
