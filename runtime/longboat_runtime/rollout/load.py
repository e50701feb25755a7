"""What engines feel: what one did in a while, and what all of a round's did together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds.events import RoundKind, RoundMeasured, RoundWork, StepTimes


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine of `tensor_parallel` devices did in a while; several added up are engines or times together.

    `preemptions` are those for want of KV cache; `interrupted` counts running sequences whose keys and values were computed again
    because a publication replaced the weights. `step_times` are its steps by the number of sequences they worked on (`step_times.rounded`), `generated_tokens` what they drew. At most
    `running` sequences ran at a time and `waiting` waited, and at most the share `kv_usage` (0..1) of the KV cache was in use: of
    several, the largest of any one.
    """

    tensor_parallel: int
    preemptions: int = 0
    interrupted: int = 0
    generated_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    step_times: Mapping[int, StepTimes] = field(default_factory=dict)

    def __add__(self, other: Load) -> Load:
        return Load(
            max(self.tensor_parallel, other.tensor_parallel),
            self.preemptions + other.preemptions,
            self.interrupted + other.interrupted,
            self.generated_tokens + other.generated_tokens,
            max(self.running, other.running),
            max(self.waiting, other.waiting),
            max(self.kv_usage, other.kv_usage),
            merged([self.step_times, other.step_times]),
        )

    def measured(self, number: int, kind: RoundKind, engines: int, work: RoundWork | None) -> RoundMeasured:
        """The event of a round of this kind, which this is all the load of; `work` is what its `engines` were asked for."""
        return RoundMeasured(
            number,
            kind,
            self.tensor_parallel,
            engines,
            self.preemptions,
            self.interrupted,
            self.generated_tokens,
            self.running,
            self.waiting,
            self.kv_usage,
            self.step_times,
            work,
        )


@dataclass(frozen=True, slots=True)
class PodLoad:
    """A rollout pod's engines that serve, and the samples that run in all of its engines."""

    serving: int
    running: int


def total(loads: Iterable[Load]) -> Load:
    """All together; of nothing if there are none."""
    return reduce(add, loads, Load(0))
