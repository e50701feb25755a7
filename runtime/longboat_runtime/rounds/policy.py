"""The interface of round policies: the pure rules that launch, stop, keep, defer, close, train and publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches groups of `samples` responses: first for the `queued` prompts, then for `fresh` new prompts of `domain`.

    The only decision that isn't an event, since the source decides which prompts are drawn.
    """

    round: int
    samples: int
    queued: tuple[PromptId, ...] = ()
    fresh: int = 0
    domain: str = ""


Decision = Launch | Body


class PolicyError(Exception):
    """A policy made a decision that the ledger's state doesn't allow: a bug in the policy."""


class Policy(Protocol):
    """A rule without state of its own: everything it needs to know is in the view.

    It is asked after every external event that had an effect (Started, SpecChanged, RacesSuspended, Generated, Lost, Stopped, Paused,
    Graded, ChunkDone, ChunksLost, StepFailed, StepCommitted, Published), except a SpecChanged that waited for a commit. Its decisions
    become events in the order given, and it is asked again with the same event and the new state until it decides nothing more. So a
    policy compares the actual state with the desired one, and needn't remember its earlier decisions.
    """

    def decide(self, view: View, event: Event) -> Sequence[Decision]: ...
