"""Round policies: the pure rule that launches, stops, keeps, defers, closes, trains and publishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longboat_runtime.rounds.events import DeferReason, DropReason, Event, RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


@dataclass(frozen=True, slots=True)
class Open:
    """Opens the next round on the weights that serve. Only short rounds race, and none while races are suspended."""

    kind: RoundKind = RoundKind.SHORT
    racing: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches groups of `samples` responses: first the prompts of `queued`, then `fresh` new ones from the source, of `domain`."""

    round: int
    samples: int
    queued: tuple[PromptId, ...] = ()
    fresh: int = 0
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Makes a lost sample again: same seed, hence the same tokens if the same weights serve."""

    sample: SampleId


@dataclass(frozen=True, slots=True)
class Abort:
    """Stops samples that are not among the first `groupSize` of their complete group."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class Carry:
    """Leaves the group to a later round: what still runs of it is paused, with the tokens that it has."""

    prompt: PromptId


@dataclass(frozen=True, slots=True)
class Adopt:
    """Takes a carried group into an open round, and has its paused samples go on."""

    round: int
    prompt: PromptId


@dataclass(frozen=True, slots=True)
class Resume:
    """Has paused samples go on whose group a round has adopted before their engine had given them back."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """The group, all of it graded, is part of its round's batch."""

    prompt: PromptId


@dataclass(frozen=True, slots=True)
class Defer:
    """Gives up this attempt, stops what still runs of it and queues the prompt."""

    prompt: PromptId
    reason: DeferReason


@dataclass(frozen=True, slots=True)
class Drop:
    """Gives up the prompt for this epoch and stops what still runs of it."""

    prompt: PromptId
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a round; all its groups are decided."""

    round: int


@dataclass(frozen=True, slots=True)
class Train:
    """Makes the next optimizer step from what a closed round kept."""

    round: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Has engines serve the weights of the last committed step."""

    version: int


Action = Open | Launch | Relaunch | Abort | Carry | Adopt | Resume | Keep | Defer | Drop | Close | Train | Publish


class Policy(Protocol):
    """A rule without state of its own: what it needs to know is in the view, or is derived from it.

    It is asked after every event from outside that had an effect (Started, Generated, Lost, Stopped, Paused,
    Graded, StepFailed, StepCommitted, Published).
    What it decides is carried out in order, and it is asked again with the same event and the new state until it decides
    nothing more. So a policy compares what is with what should be, and need not remember what it has asked for.
    """

    def decide(self, view: View, event: Event) -> Sequence[Action]: ...
