"""Defines a grader as the reward worker sees it: it turns a response into a grade."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, GradersCapacity, IsolationInForce
from longboat_graders.result import RewardSample


class Grader(Protocol):
    """Grades responses by rewards. `client.GraderClient` hands them to the graders of its pod.

    Calls run concurrently; a grader limits itself how many grades do.
    """

    @property
    def isolation(self) -> Mapping[str, IsolationInForce]:
        """Isolation of the grades of each loaded reward now, by name. It may change while they are graded."""

    @property
    def capacity(self) -> GradersCapacity | None:
        """Capacity that it last reported: how many grades run at once. None before a reward is loaded."""

    @property
    def token_ids(self) -> Collection[str]:
        """Names of the loaded rewards whose functions take the token ids of responses."""

    @property
    def sources(self) -> Mapping[str, Mapping[str, str]]:
        """The digests of files and versions of distributions that rewards are made of, by reward; see `longboat_graders.sources`."""

    @property
    def changed(self) -> str:
        """Says which reward is no longer what was loaded first, after which this grader grades nothing; empty if none."""

    async def load(self, reward: RewardSpec, field: str, per_grade: str | None = None) -> SpecProblem | None:
        """Prepares for this reward, and returns what is wrong with it. `field` is its spec path. Raises ServerGone.

        `per_grade` is why its grades are known to need a process each, if another grader has found that out.
        """

    async def grade(
        self,
        reward: str,
        sample: RewardSample | Sequence[RewardSample],
        seconds: float,
        seed: int,
        own_seconds: float | None = None,
        *,
        alone: bool = False,
    ) -> FunctionOutcome:
        """Grades by the reward of this name, one sample or all responses to a prompt; random numbers follow from `seed` (31 bits).

        The outcome is TIMEOUT after `seconds`, in which waiting for a CPU doesn't count. It is TIMEOUT, too, after `own_seconds` (see
        `FunctionOutcome`), which are given if its time is learned from. For a reward with test cases both limit each case, and
        `verdict.score_of` says when the outcome is TIMEOUT. With `alone` this grader grades nothing else meanwhile. If the call is
        cancelled the grade is ended, wherever it runs: what it occupied is free for the next one.
        """

    async def close(self) -> None:
        """Gives up what is under way."""
