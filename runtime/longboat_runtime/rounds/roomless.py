"""The driver's part in a round policy, without rooms: folds events and has the policy decide. Pure.

The simulator and the property tests put their own engines, graders and trainer around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from longboat_runtime.rounds.decisions import PolicyError, bodies, paused_by, stopped_by
from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.late import as_given_back
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


class Roomless(ABC):
    """A ledger and the policy that is asked after every event. `incarnation` is the number its events carry."""

    def __init__(self, policy: Policy, ledger: Ledger, incarnation: int) -> None:
        self.policy = policy
        self.take_over(ledger, incarnation)

    def take_over(self, ledger: Ledger, incarnation: int) -> None:
        """From now on the events of another incarnation go into `ledger`; it has to be told `Started`."""
        self.ledger, self.view, self.incarnation = ledger, View(ledger), incarnation

    def record(self, body: Body) -> bool:
        """Folds what happened, and has the policy decide until it decides nothing more; False if it had no effect."""
        event = self._fold(as_given_back(self.view, body))
        if event is None:
            return False
        while actions := self.policy.decide(self.view, event):
            for action in actions:
                stopped, paused = stopped_by(self.view, action), paused_by(self.view, action)
                for decided in bodies(self.view, action, self.draw):
                    if self._fold(decided) is None:
                        raise PolicyError(f"{action} is against the state of the ledger")
                if stopped:
                    self.stop(stopped)
                if paused:
                    self.pause(paused)
        return True

    def _fold(self, body: Body) -> Event | None:
        event = Event(self.ledger.seq + 1, self.incarnation, self.now(), body)
        if not self.ledger.apply(event):
            return None
        self.noted(event)
        return event

    @abstractmethod
    def now(self) -> float:
        """The time that the next event gets, in seconds."""

    @abstractmethod
    def draw(self, count: int, domain: str) -> Sequence[PromptId]:
        """The next prompts of a domain, or of the whole source where it is empty."""

    @abstractmethod
    def noted(self, event: Event) -> None:
        """An event had an effect: what it sets going (launch, train, publish) is up to the rooms."""

    @abstractmethod
    def stop(self, samples: Sequence[SampleId]) -> None:
        """Engines have to stop these samples, which ran until now."""

    @abstractmethod
    def pause(self, samples: Sequence[SampleId]) -> None:
        """Engines have to give these samples back with the tokens that they have, to go on later."""
