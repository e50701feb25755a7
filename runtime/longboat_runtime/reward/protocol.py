"""The protocol of the scheduler that the driver asks for grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.result import IsolationInForce
from longboat_runtime.samples import Grade, Row, SampleId, TimeLimit


class Urgency(NamedTuple):
    """What a grade decides, as far as the driver knows when it asks for it; pools grade in this order (`reward.queue`).

    `round` is the number of the sample's round; an evaluation's grades are before those of any round (0), since the next optimizer step
    waits for them. `missing` is how many samples of its group lack a grade, this one included.
    """

    round: int = 0
    missing: int = 1


class RewardScheduler(Protocol):
    """All reward pools of a job. `unserved` are the names of those without a worker to grade samples."""

    @property
    def unserved(self) -> Sequence[str]: ...

    @property
    def isolation(self) -> Mapping[str, IsolationInForce]:
        """How the grades of each reward are kept apart now, by name of the reward."""

    @property
    def loads(self) -> Mapping[str, PoolLoad]:
        """What each pool has to do now, by name."""

    async def grade(
        self, sample: SampleId, row: Row, urgency: Urgency = ..., limits: Mapping[str, TimeLimit] | None = None
    ) -> Grade:
        """Grades a stored sample, by all pools at once that have a reward for it.

        A grader error has been retried on another worker before it is returned. Cancelling the call gives the grade up: it leaves the
        queue, or is ended where it runs. Raises KeyError if the store has lost the sample.

        `limits` are there for the rewards whose timeouts are learned, by name; the grade has `times` for them.
        """

    def flush(self) -> None:
        """Nothing more is being generated: samples that wait to be sent together with others are sent now."""

    async def close(self) -> None: ...
