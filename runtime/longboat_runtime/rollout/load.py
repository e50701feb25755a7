"""The load of engines: of one over a time, and of all in a round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds.measurements import RoundMeasured, RoundWork, StepTimes
from longboat_runtime.rounds.round_kind import RoundKind


@dataclass(frozen=True, slots=True)
class Load:
    """Reports the load of an engine of `tensor_parallel` devices over some time. Loads of several engines or times add up.

    `preemptions` are those for want of KV cache; `interrupted` counts running sequences whose keys and values were computed again
    because a publication replaced the weights. `step_times` are its steps by the number of sequences that they gave a token
    (`step_times.rounded`), `generated_tokens` the tokens that it drew. At the end of any step at most `running` sequences ran and `waiting`
    waited, and at most the share `kv_usage` (0..1) of the KV cache was in use. For several engines, these are the largest values of any.
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
        """Makes the event of a round of this kind whose whole load this is; `work` is that of its `engines`, None if it isn't known."""
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
    """Adds all loads; without any the sum is `Load(0)`."""
    return reduce(add, loads, Load(0))
