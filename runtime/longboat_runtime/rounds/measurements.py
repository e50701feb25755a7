"""What components measured and did while rounds went on: it stands in the event log and changes nothing about any sample. Pure.

The ledger and policies don't get measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat_runtime.rounds.round_kind import RoundKind


@dataclass(frozen=True, slots=True)
class Responses:
    """Summarises `samples` responses, of which `completed` ended on their own or were stopped because their groups had enough.

    The others were stopped when the round left out their groups. `lengths` are the tokens of the completed ones, `stopped` those that the
    others had: ascending, and quantiles at even shares if there are many.
    """

    samples: int = 0
    completed: int = 0
    lengths: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundWork:
    """Describes the work of a round's engines: `responses` to prompts of `prompt_tokens` tokens on average.

    They took `seconds`, from the opening of the round until the last of those that are back came back.
    """

    seconds: float
    prompt_tokens: float
    responses: Responses


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Counts engine steps, and sums the seconds that they took."""

    steps: int
    seconds: float

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(self.steps + other.steps, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """Reports the load of `engines`, of at most `tensor_parallel` devices each, in a round of this `kind`.

    `preemptions` are those for want of KV cache, `interrupted` the running sequences that a publication had computed again.
    `generated_tokens` are all tokens known to be drawn, those of lost samples included. At most `running` sequences ran in one engine at a
    time, `waiting` waited there, and the share `kv_usage` (0..1) of its KV cache was in use. `step_times` are the engines' steps by the
    number of sequences that they gave a token, rounded (`rollout.step_times.rounded`). `work` is what they were asked for, None if that
    isn't known.
    """

    round: int
    kind: RoundKind
    tensor_parallel: int
    engines: int
    preemptions: int
    interrupted: int
    generated_tokens: int
    running: int
    waiting: int
    kv_usage: float
    step_times: Mapping[int, StepTimes] = field(default_factory=dict)
    work: RoundWork | None = None

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step; 0 without steps."""
        steps = sum(times.steps for times in self.step_times.values())
        return sum(times.seconds for times in self.step_times.values()) / steps if steps else 0.0


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Says that engines have `tensor_parallel` devices each, and by its `reason` why they changed.

    `seconds` has those of each phase. If `failure` isn't empty, it says why engines have the size that they had before; `unfit` is the
    size that they could not take, None if the failure has nothing to do with it.
    """

    tensor_parallel: int
    reason: str
    seconds: Mapping[str, float]
    failure: str = ""
    unfit: int | None = None


@dataclass(frozen=True, slots=True)
class ShapesAllowed:
    """An edit of `rollout.parallelism` lets engines have these `sizes`, in devices and ascending; `start` is the spec's own.

    Rounds are priced by `profile`, a path; by their tokens without one.
    """

    sizes: tuple[int, ...]
    start: int
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class PodsChanged:
    """Rollout pods, by name, have `joined` or are `gone`."""

    joined: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsUnreachable:
    """No engine serves, since none could fetch the weights; `reason` is that of one of them."""

    reason: str


@dataclass(frozen=True, slots=True)
class PodDrained:
    """A rollout pod that the job gives back runs nothing any more, `seconds` after it was named: what ran there continues elsewhere."""

    pod: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PoolGrading:
    """Reports what a reward pool did in a round.

    `arrived` grades were asked for and `graded` made, which took `cpu_seconds` in all. Whenever the pool was looked at, at most `waiting`
    waited, the longest for `queue_seconds` at least. `asked` is its course: from so many seconds after the round was opened, so many grades
    had no answer yet.
    """

    arrived: int
    graded: int
    cpu_seconds: float
    waiting: int
    queue_seconds: float
    asked: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RoundGraded:
    """Reports what reward pools did, by name, while this round was the newest one."""

    round: int
    pools: Mapping[str, PoolGrading]


@dataclass(frozen=True, slots=True)
class CpusAsked:
    """Another division of CPUs over reward pools, in CPUs by name, was asked for. `reason` is for people."""

    pools: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True)
class CpusGranted:
    """Reward pools, by name, may have so many CPUs from now on."""

    pools: Mapping[str, float]


Measurement = (
    RoundMeasured
    | Reshaped
    | ShapesAllowed
    | PodsChanged
    | WeightsUnreachable
    | PodDrained
    | RoundGraded
    | CpusAsked
    | CpusGranted
)
