"""Rounds, groups and tries while they are folded. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from longboat_runtime.rounds import events
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.timeline.bars import Bar, Fate, Round


@dataclass(slots=True)
class Try:
    """One try at a sample, from the tokens that it had `begun` with. `fate` stays None for what the group decides."""

    start: float
    begun: int = 0
    end: float | None = None
    engine: str | None = None
    tokens: int = 0
    fate: Fate | None = None


@dataclass(slots=True)
class OpenGroup:
    """One attempt at a prompt, in one round. `tries` has those of each sample.

    `seats` are the samples that were graded: only those that count are, and they count for good. A group that a
    later round adopts has the same seats there, and is `before` that one.
    """

    prompt: PromptId
    attempt: int
    tries: list[list[Try]]
    domain: str = ""
    seats: set[int] = field(default_factory=set)
    fate: Fate = Fate.OPEN
    before: OpenGroup | None = None

    def latest(self, index: int) -> list[Try]:
        """The last try at a sample, perhaps in a round before."""
        return self.tries[index][-1:] or (self.before.latest(index) if self.before else [])

    def give_up(self, fate: Fate, time: float) -> None:
        """All of it ends; what was lost or surplus before stays that."""
        self.fate = fate
        for tries in self.tries:
            for one in tries:
                one.fate = one.fate or fate
                one.end = time if one.end is None else one.end

    def bars(self, end: float) -> list[Bar]:
        """A bar for each try; those that still run end at `end`."""
        return [
            Bar(
                SampleId(*self.prompt, self.attempt, index),
                one.start,
                end if one.end is None else one.end,
                one.engine,
                one.tokens,
                self._fate(one, index),
                self.domain,
            )
            for index, tries in enumerate(self.tries)
            for one in tries
        ]

    def _fate(self, one: Try, index: int) -> Fate:
        if one.fate is not None:
            return one.fate
        if one.end is None or self.fate is not Fate.KEPT:
            return Fate.OPEN
        return Fate.KEPT if index in self.seats else Fate.SURPLUS


@dataclass(slots=True)
class OpenRound:
    """A round, `begun` by this event."""

    begun: events.RoundOpened
    opened: float
    closed: float | None = None
    step: int | None = None
    groups: list[OpenGroup] = field(default_factory=list)

    def frozen(self, end: float) -> Round:
        """The round as the log tells it, which ends at `end`."""
        fates = [group.fate for group in self.groups]
        bars = tuple(bar for group in self.groups for bar in group.bars(end))
        return Round(
            self.begun.round,
            self.begun.kind,
            self.begun.version,
            self.opened,
            self.closed,
            self.step,
            kept=fates.count(Fate.KEPT),
            deferred=fates.count(Fate.DEFERRED),
            carried=fates.count(Fate.CARRIED),
            dropped=fates.count(Fate.DROPPED),
            bars=bars,
        )
