"""The decision loop: what happened is numbered and folded, the policy is asked, and what it decides is folded and carried out. Pure.

The driver, the simulator and the property tests put their own engines, graders and trainer around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.policy import Launch, Policy, PolicyError
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


@dataclass(frozen=True, slots=True)
class Effects:
    """What an event does to samples that were under way until then.

    Engines have to `stop` samples that they still make, or to give them back with the tokens that they have, to go on later
    (`pause`). `given_up` are all samples of a group that is given up: nobody needs their data.
    """

    stop: tuple[SampleId, ...] = ()
    pause: tuple[SampleId, ...] = ()
    given_up: tuple[SampleId, ...] = ()


class Host(Protocol):
    """What is around a loop."""

    def now(self) -> float:
        """The time that the next event gets, in seconds."""

    def draw(self, count: int, domain: str) -> Sequence[PromptId]:
        """The next prompts of a domain, or of the whole source where it is empty."""

    def carry_out(self, event: Event, effects: Effects) -> None:
        """An event was folded, whoever it came from. What it sets going (launch, stop, train, publish) begins here."""


class RoundLoop:
    """A ledger and the policy that is asked after every event. `incarnation` is the number its events carry.

    `resting` has it fold what happens and decide nothing.

    An edit of the spec counts from the step boundary on: one that comes while a step is made waits for its commit, and is folded
    just before that. So the checkpoint of the step has it, and so has whatever the policy decides of the next one.
    """

    def __init__(self, policy: Policy, host: Host, ledger: Ledger, incarnation: int) -> None:
        self.policy, self.ledger, self.view, self.incarnation = policy, ledger, View(ledger), incarnation
        self.resting = False
        self._host = host
        self._edit: events.SpecChanged | None = None

    def happened(self, body: Body) -> bool:
        """Folds what happened, and has the policy decide until it decides nothing more; False if it had no effect.

        A response that finished while it was being stopped counts for nothing, and its length is known: it is `Stopped`, and
        `finished`. Raises PolicyError if a decision is against the state of the ledger.
        """
        if isinstance(body, events.SpecChanged) and not between_steps(self.view):
            self._edit = body
            return True
        if isinstance(body, events.StepCommitted) and self._edit:
            self._fold(self._edit)
            self._edit = None
        if isinstance(body, events.Generated) and self.view.awaits(body.sample):
            body = events.Stopped(body.sample, body.tokens, body.engine, finished=True)
        event = self._fold(body)
        while event and not self.resting and (decisions := self.policy.decide(self.view, event)):
            for decision in decisions:
                for decided in self._launches(decision) if isinstance(decision, Launch) else (decision,):
                    if self._fold(decided) is None:
                        raise PolicyError(f"{decision} is against the state of the ledger")
        return event is not None

    def _launches(self, launch: Launch) -> Iterator[Body]:
        """Its events, in order. Each is folded before the next one is asked for."""
        drawn = tuple(self._host.draw(launch.fresh, launch.domain)) if launch.fresh else ()
        if drawn:
            yield events.Drawn(self.view.drawn, drawn, launch.domain)
        for prompt in (*launch.queued, *drawn):
            yield events.Launched(launch.round, prompt, self.view.queue.get(prompt, -1), launch.samples)

    def _fold(self, body: Body) -> Event | None:
        """The event, once it is folded and carried out; None if it had no effect."""
        event = Event(self.ledger.seq + 1, self.incarnation, self._host.now(), body)
        effects = effects_of(self.view, body)
        if not self.ledger.apply(event):
            return None
        self._host.carry_out(event, effects)
        return event


def between_steps(view: View) -> bool:
    """No step is being made: the last one is done, no round is under way, or a driver has started and nothing serves yet (pure)."""
    return view.step >= view.steps or not view.rounds or view.serving is None


def effects_of(view: View, body: Body) -> Effects:
    """What folding `body`, which has not been folded yet, does to samples that are under way (pure)."""
    match body:
        case events.Aborted(samples=samples):
            running = (s for s in samples if (record := view.sample(s)) and record.state is SampleState.RUNNING)
            return Effects(stop=tuple(running))
        case events.GroupDeferred(prompt=prompt) | events.GroupDropped(prompt=prompt) if group := view.groups.get(
            prompt
        ):
            return Effects(stop=group.running, given_up=tuple(group.sample_ids))
        case events.GroupCarried(prompt=prompt) if group := view.groups.get(prompt):
            return Effects(pause=group.running)
    return Effects()
