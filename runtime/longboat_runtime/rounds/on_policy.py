"""What strictly on-policy policies have in common: one round at a time, on the weights of the last step. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, Event
from longboat_runtime.rounds.judging import off_version
from longboat_runtime.rounds.policy import Action, Defer, Open, Publish, Train
from longboat_runtime.rounds.records import RoundState
from longboat_runtime.rounds.recovery import recover
from longboat_runtime.rounds.view import RoundView, View


@dataclass(frozen=True, slots=True)
class OnPolicy(ABC):
    """Publishes, opens a round, makes lost samples again, trains; a policy says what happens to the groups of a round.

    A step trains `prompts_per_round` prompts with `group_size` responses each.
    """

    steps: int
    prompts_per_round: int
    group_size: int

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.serving != view.step:
            return [Publish(view.step)] if view.publishing is None else []
        round_ = next(iter(view.rounds.values()), None)
        if round_ is None:
            return [self._open(view)] if view.step < self.steps else []
        if actions := recover(view):
            return actions
        match event.body:
            case events.Generated(sample=sample) if off_version(view, sample):
                return [Defer(sample.prompt, DeferReason.OFF_VERSION)]
        if answer := self._answer(view, round_, event.body):
            return [answer]
        if round_.trainable:
            return [Train(round_.number)]
        return self._settle(view, round_, event.body) if round_.state is RoundState.OPEN else []

    @abstractmethod
    def _open(self, view: View) -> Open:
        """The next round."""

    @abstractmethod
    def _answer(self, view: View, round_: RoundView, body: events.Body) -> Action | None:
        """What the event itself calls for."""

    @abstractmethod
    def _settle(self, view: View, round_: RoundView, body: events.Body) -> Sequence[Action]:
        """What an open round lacks, or its end, now that this has happened."""
