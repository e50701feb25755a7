"""Rounds over time: a bar for each sample, a span for each thing that the trainer did. Pure.

All times are Unix seconds, as recorded by the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longboat_runtime.rounds.events import RoundKind
from longboat_runtime.samples import SampleId


class Fate(StrEnum):
    """What became of a sample."""

    KEPT = "kept"
    """Part of its round's batch."""
    SURPLUS = "surplus"
    """Beyond the first `groupSize` responses of its group."""
    DEFERRED = "deferred"
    """Its group went back to the queue."""
    CARRIED = "carried"
    """Its round ended before its group was complete; both go on in a later one, with the tokens that there are."""
    DROPPED = "dropped"
    LOST = "lost"
    """Its engine, or what the store had of it, is gone."""
    OPEN = "still open"
    """It runs, or its group is undecided, where the log ends."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One try at one sample, from its launch (waiting in the engine included) to the event that ended it, or the log's end.

    `engine` is None and `tokens` 0 if no engine gave it back: those of finished, stopped and paused samples are in the log. A try
    that went on with a paused sample has the tokens that it added. `domain` is the one that its prompt was drawn from; empty if the
    job has no quotas.
    """

    sample: SampleId
    start: float
    end: float
    engine: str | None
    tokens: int
    fate: Fate
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One round. `closed` is None while it is open, `step` until it is trained; `kept`, `deferred`, `carried` and `dropped` count prompts."""

    number: int
    kind: RoundKind
    version: int
    opened: float
    closed: float | None
    step: int | None
    kept: int
    deferred: int
    carried: int
    dropped: int
    bars: tuple[Bar, ...]

    @property
    def tokens(self) -> int:
        """Response tokens of all finished and stopped samples, whatever became of them."""
        return sum(bar.tokens for bar in self.bars)


class Work(StrEnum):
    """What the trainer does for a step. A publication includes the evaluation of what it published."""

    TRAIN = "train"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True)
class Span:
    """Work on a step (for a publication: on the weights that this step made). `done` is False if it failed or goes on."""

    work: Work
    step: int
    start: float
    end: float
    done: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """No driver whose work survived ran: from the last event of an incarnation to the start of the next one."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rounds in the order of their numbers, spans and gaps by start; `end` is the last moment of all of them."""

    rounds: tuple[Round, ...]
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
    end: float

    @property
    def start(self) -> float:
        """When the first round was opened. Raises IndexError if there is none."""
        return self.rounds[0].opened
