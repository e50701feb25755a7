"""The decision loop: numbers and folds events, asks the policy, then folds its decisions and has the host carry them out. Pure.

The driver, the simulator and the property tests run it with their own engines, graders and trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Body, Event, LogEntry
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.measurements import Measurement, RoundGraded, RoundMeasured
from longboat_runtime.rounds.policy import Launch, Policy, PolicyError
from longboat_runtime.rounds.records import GroupRecord, SampleState
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId, SampleId


@dataclass(frozen=True, slots=True)
class Effects:
    """Lists what an event does to samples that are under way.

    Engines have to `stop` samples, or `pause` them: return them with their tokens, to be resumed later. `given_up` is a group that
    is given up, as it was: the data of its samples is no longer needed.
    """

    stop: tuple[SampleId, ...] = ()
    pause: tuple[SampleId, ...] = ()
    given_up: GroupRecord | None = None


class Host(Protocol):
    """The environment of a loop: its clock, its prompts, and whatever carries out its decisions."""

    def now(self) -> float:
        """Returns the present time, in seconds: that of the next event."""

    def draw(self, count: int, domain: str) -> Sequence[PromptId]:
        """Draws the next `count` prompts of a domain, or of the whole source if `domain` is empty."""

    def carry_out(self, event: Event, effects: Effects) -> None:
        """Starts what follows from an event: launch, stop, train, publish.

        The loop calls it for every event that was folded, wherever it came from.
        """


class RoundLoop:
    """A ledger and the policy that is asked after events. `incarnation` is the number its events carry.

    While it is `halted` it folds events and decides nothing.

    An edit of the spec counts from the next step boundary: one that arrives during a step waits for its commit and is folded just
    before it. So the step's checkpoint includes the edit, and the policy follows it in the next step.
    """

    def __init__(self, policy: Policy, host: Host, ledger: Ledger, incarnation: int) -> None:
        self.policy, self.ledger, self.view, self.incarnation = policy, ledger, View(ledger), incarnation
        self.halted = False
        # The number of the last entry of the log. The ledger has that of the last event, which is the same at a step boundary.
        self._seq = ledger.seq
        self._host = host
        self._edit: events.SpecChanged | None = None

    def happened(self, body: Body) -> bool:
        """Folds an event, and asks the policy until it decides nothing more. Returns False if the event had no effect.

        It isn't asked about observations.
        A response that finished while it was being stopped doesn't count, but its length is known: it is recorded as `Stopped`
        with `finished`. Raises PolicyError if a decision contradicts the state of the ledger.
        """
        if isinstance(body, events.SpecChanged) and not between_steps(self.view):
            self._edit = body
            return True
        if isinstance(body, events.StepCommitted) and self._edit:
            self._fold(self._edit)
            self._edit = None
        if isinstance(body, events.Generated) and self.view.awaits(body.sample):
            body = events.Stopped(
                body.sample, body.tokens, body.engine, finished=True, environment_seconds=body.environment_seconds
            )
        event = self._fold(body)
        if isinstance(body, events.OBSERVATIONS):
            return event is not None
        while event and not self.halted and (decisions := self.policy.decide(self.view, event)):
            for decision in decisions:
                for decided in self._launches(decision) if isinstance(decision, Launch) else (decision,):
                    if self._fold(decided) is None:
                        raise PolicyError(f"{decision} contradicts the state of the ledger")
        return event is not None

    def entry(self, measurement: Measurement) -> LogEntry[Measurement] | None:
        """Gives a measurement the next number; returns None if its round is over. Neither the ledger nor the policy gets it."""
        if isinstance(measurement, RoundMeasured | RoundGraded) and measurement.round not in self.view.rounds:
            return None
        self._seq += 1
        return LogEntry(self._seq, self.incarnation, self._host.now(), measurement)

    def _launches(self, launch: Launch) -> Iterator[Body]:
        """Yields the events of the launch, in order. Each is folded before the next is requested."""
        drawn = tuple(self._host.draw(launch.fresh, launch.domain)) if launch.fresh else ()
        if drawn:
            yield events.Drawn(self.view.drawn, drawn, launch.domain)
        for prompt in (*launch.queued, *drawn):
            yield events.Launched(launch.round, prompt, self.view.queue.get(prompt, -1), launch.samples)

    def _fold(self, body: Body) -> Event | None:
        """Folds an event and has it carried out; returns it, or None if it had no effect."""
        event = LogEntry(self._seq + 1, self.incarnation, self._host.now(), body)
        effects = effects_of(self.view, body)
        if not self.ledger.apply(event):
            return None
        self._seq = event.seq
        self._host.carry_out(event, effects)
        return event


def between_steps(view: View) -> bool:
    """Whether no step is under way: all are done, no round is open or waits, or no weights serve since the driver's start (pure)."""
    return view.step >= view.steps or not view.rounds or view.serving is None


def effects_of(view: View, body: Body) -> Effects:
    """Returns what `body`, which has not been folded yet, does to samples once it is (pure)."""
    match body:
        case events.Aborted(samples=samples):
            running = (s for s in samples if (record := view.sample(s)) and record.state is SampleState.RUNNING)
            return Effects(stop=tuple(running))
        case events.GroupDeferred(prompt=prompt) | events.GroupDropped(prompt=prompt) if group := view.groups.get(
            prompt
        ):
            return Effects(stop=group.running, given_up=group)
        case events.GroupCarried(prompt=prompt) if group := view.groups.get(prompt):
            return Effects(pause=group.running)
    return Effects()
