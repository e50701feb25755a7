"""Strictly on-policy policies with one quota of prompts, which are of any domain. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import RoundKind
from longboat_runtime.rounds.on_policy import OnPolicy
from longboat_runtime.rounds.policy import Action, Open
from longboat_runtime.rounds.view import PartView, RoundView, View


@dataclass(frozen=True, slots=True)
class OneQuota(OnPolicy):
    """A rule for `prompts_per_round` prompts: those of a job, or of one domain of it (see `by_domain`).

    It sees no more than what waits and what is in a round of those prompts.
    """

    def due(self, view: View) -> bool:
        """Enough is deferred for a long round."""
        return False

    def urgent(self, view: View) -> bool:
        """What is deferred can't wait for other domains."""
        return False

    def racing(self, view: View) -> bool:
        """The next short round leaves its slowest prompts out."""
        return False

    @abstractmethod
    def answer(self, view: View, part: PartView, body: events.Body) -> Action | None:
        """What the event itself calls for."""

    @abstractmethod
    def settle(self, view: View, part: PartView) -> Sequence[Action]:
        """What the quota lacks, or the round's end."""

    def _open(self, view: View) -> Open:
        if self.due(view) or self.urgent(view):
            return Open(RoundKind.LONG)
        return Open(RoundKind.SHORT, racing=self.racing(view))

    def _answer(self, view: View, round_: RoundView, body: events.Body) -> Action | None:
        return self.answer(view, round_, body)

    def _settle(self, view: View, round_: RoundView, body: events.Body) -> Sequence[Action]:
        return self.settle(view, round_)
