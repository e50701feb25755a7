"""Strictly on-policy policies: one round at a time, on the weights of the last step. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, Event
from longboat_runtime.rounds.policy import Decision
from longboat_runtime.rounds.records import PartRecord, RoundRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import deferred, next_round, off_version, publication, recover
from longboat_runtime.rounds.view import View


@dataclass(frozen=True, slots=True)
class OnPolicy(ABC):
    """Publishes, opens a round, recovers lost samples, trains; subclasses decide what happens to the groups of a round.

    A step trains `prompts_per_round` prompts with `group_size` responses each.
    """

    prompts_per_round: int
    group_size: int

    def decide(self, view: View, event: Event) -> Sequence[Decision]:
        if view.serving != view.step:
            return publication(view)
        round_ = next(iter(view.rounds.values()), None)
        if round_ is None:
            return [self.upcoming(view)] if view.step < view.steps else []
        if decisions := recover(view):
            return decisions
        match event.body:
            case events.Generated(sample=sample) if off_version(view, sample):
                return [deferred(view.groups[sample.prompt], DeferReason.OFF_VERSION)]
        if answer := self.answer(view, round_, event.body):
            return [answer]
        if round_.trainable:
            return [events.StepStarted(view.step + 1, round_.number)]
        return self.settle(view, round_, event.body) if round_.open else []

    @abstractmethod
    def upcoming(self, view: View) -> events.RoundOpened:
        """Returns the event that opens the next round."""

    @abstractmethod
    def answer(self, view: View, round_: RoundRecord, body: events.Body) -> Decision | None:
        """Returns the decision that the event itself requires, if any."""

    @abstractmethod
    def settle(self, view: View, round_: RoundRecord, body: events.Body) -> Sequence[Decision]:
        """Returns the decisions that an open round still needs after this event: launches, the end of a race, the end of the round."""


@dataclass(frozen=True, slots=True)
class OneQuota(OnPolicy):
    """A rule for `prompts_per_round` prompts: all prompts of a round, or those of one domain (see `by_domain`).

    It sees only these prompts, both in the queue and in the round.
    """

    def due(self, view: View) -> bool:
        """Whether enough prompts are deferred for a long round."""
        return False

    def urgent(self, view: View) -> bool:
        """Whether the deferred prompts can't wait for other domains."""
        return False

    def racing(self, view: View) -> bool:
        """Whether the next short round races: leaves out its slowest prompts."""
        return False

    @abstractmethod
    def answer(self, view: View, part: PartRecord, body: events.Body) -> Decision | None:
        """Returns the decision that the event itself requires, if any."""

    @abstractmethod
    def settle(self, view: View, part: PartRecord, body: events.Body) -> Sequence[Decision]:
        """Returns the decisions that the quota still needs after this event: launches, the end of a race, the end of the round."""

    def upcoming(self, view: View) -> events.RoundOpened:
        """Returns the event that opens the next round."""
        if self.due(view) or self.urgent(view):
            return next_round(view, RoundKind.LONG)
        return next_round(view, racing=self.racing(view))
