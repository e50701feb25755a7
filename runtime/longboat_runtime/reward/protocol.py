"""The protocol of the scheduler that the driver asks for grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from longboat_graders.messages import IsolationInForce
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.samples import Grade, Row, SampleId, TimeLimit


class Urgency(NamedTuple):
    """Orders grades by what depends on them; pools grade the smallest first (`reward.queue`).

    `round` is the number of the sample's round, 0 for an evaluation, whose grades come first since the next optimizer step waits for
    them. `missing` is the number of grades that its group still lacks, including this one; 1 for an evaluation.
    """

    round: int = 0
    missing: int = 1


# Of grades that nothing waits for.
LEAST_URGENT = Urgency(2**62)


class RewardScheduler(Protocol):
    """Grades samples in all reward pools of a job. `unserved` names the pools without a worker."""

    @property
    def unserved(self) -> Sequence[str]: ...

    @property
    def isolation(self) -> Mapping[str, IsolationInForce]:
        """The isolation in force between the grades of each reward that a worker has told of, by its name."""

    @property
    def sources(self) -> Mapping[str, Mapping[str, str]]:
        """Digests of what each reward is made of, by its name and that of the file or distribution, once pools have loaded them.

        Without those of rewards whose graders don't tell.
        """

    @property
    def disagreeing(self) -> str:
        """Says which pods loaded a reward that is made of something else, so that they don't grade; empty if none."""

    @property
    def loads(self) -> Mapping[str, PoolLoad]:
        """The current load of each pool, by its name."""

    async def grade(
        self,
        sample: SampleId,
        row: Row,
        urgency: Urgency = ...,
        limits: Mapping[str, TimeLimit] | None = None,
        *,
        siblings: Sequence[SampleId] = (),
        training: Mapping[str, float] = ...,
        only: str | None = None,
    ) -> Grade:
        """Grades a stored sample, in all pools with a reward for it at once, or by the one reward `only`.

        Rewards that are given all responses to a prompt wait for the call with `siblings`: all samples of the group that count, this one
        included, once the store has them. `training` says how far the training is, for functions that ask.

        A function that fails is run once more, on another worker if there is one. Cancelling the call cancels the grade, queued or running.
        Raises KeyError if the store has lost the sample.

        `limits` has the limits of rewards whose timeouts are learned, by name; the grade has `times` for those of them that were timed.
        """

    def flush(self) -> None:
        """Sends samples that wait to be sent with others. Called when nothing more is being generated."""

    async def close(self) -> None: ...
