"""Round policies: the pure rule that launches, stops, keeps, defers, closes, trains and publishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches groups of `samples` responses: first the prompts of `queued`, then `fresh` new ones from the source, of `domain`.

    The only decision that isn't an event: which prompts are drawn is up to the source.
    """

    round: int
    samples: int
    queued: tuple[PromptId, ...] = ()
    fresh: int = 0
    domain: str = ""


Decision = Launch | Body


class PolicyError(Exception):
    """A policy decided what the ledger's state doesn't allow: a mistake in the policy."""


class Policy(Protocol):
    """A rule without state of its own: what it needs to know is in the view, or is derived from it.

    It is asked after every event from outside that had an effect (Started, SpecChanged, Generated, Lost, Stopped, Paused,
    Graded, StepFailed, StepCommitted, Published).
    What it decides becomes events in this order, and it is asked again with the same event and the new state until it decides
    nothing more. So a policy compares what is with what should be, and need not remember what it has asked for.
    """

    def decide(self, view: View, event: Event) -> Sequence[Decision]: ...
