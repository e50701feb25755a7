"""Events of a log, folded into rounds and bars. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.timeline.bars import Bar, Fate, Gap, Pool, Round, Span, Timeline, Work


def fold(log: Iterable[Event]) -> Timeline:
    """The timeline of events in the order of their numbers. What was launched before the first of them isn't in it."""
    folding = _Fold()
    for event in log:
        folding.take(event)
    return folding.timeline()


class _Fold:
    def __init__(self) -> None:
        self._rounds: dict[int, OpenRound] = {}
        self._groups: dict[tuple[PromptId, int], OpenGroup] = {}
        self._domains: dict[PromptId, str] = {}
        self._working: dict[Work, tuple[int, float]] = {}
        self._spans: list[Span] = []
        self._gaps: list[Gap] = []
        self._asked: dict[str, list[tuple[float, float]]] = {}
        self._cpus: dict[str, list[tuple[float, float]]] = {}
        self._now: float | None = None

    def take(self, event: Event) -> None:
        time = event.time
        match event.body:
            case events.Started():
                self._start(time)
            case events.Drawn(prompts=prompts, domain=domain) if domain:
                self._domains.update(dict.fromkeys(prompts, domain))
            case events.RoundOpened(round=number) as opened:
                self._rounds[number] = OpenRound(opened, time)
            case events.Launched() as launched:
                self._launch(launched, time)
            case events.Generated(sample=sample, engine=engine, tokens=tokens):
                for one in self._latest(sample):
                    one.end, one.engine, one.tokens = time, engine, tokens - one.begun
            case events.Lost(sample=sample, begun=begun):
                for one in self._latest(sample):
                    one.fate, one.end = Fate.LOST, time if one.end is None else one.end
                    one.stored = begun[-1].end if begun else 0
            case events.Moved(sample=sample, tokens=tokens, source=source):
                for one in self._latest(sample):
                    one.fate, one.end, one.engine, one.tokens = Fate.MOVED, time, source, tokens - one.begun
                    one.stored = tokens
                self._resume(sample, time)
            case events.Relaunched(sample=sample):
                self._resume(sample, time)
            case events.Reshaped(seconds=seconds, failure=failure):
                self._spans.append(Span(Work.RESHAPE, self._step, time - sum(seconds.values()), time, not failure))
            case events.PodDrained(seconds=took):
                self._spans.append(Span(Work.DRAIN, self._step, time - took, time, done=True))
            case events.RoundGraded(round=number, pools=pools):
                if round_ := self._rounds.get(number):
                    for name, pool in pools.items():
                        self._asked.setdefault(name, []).extend((round_.opened + at, asked) for at, asked in pool.asked)
            case events.CpusGranted(pools=granted):
                for name, cpus in granted.items():
                    self._cpus.setdefault(name, []).append((time, cpus))
            case events.Graded(sample=sample):
                if group := self._groups.get((sample.prompt, sample.attempt)):
                    group.seats.add(sample.index)
            case events.Aborted(samples=samples):
                for one in (one for sample in samples for one in self._latest(sample) if one.end is None):
                    one.fate, one.end = Fate.SURPLUS, time
            case events.Stopped(sample=sample, engine=engine, tokens=tokens):
                for one in (one for one in self._latest(sample) if one.engine is None):
                    one.engine, one.tokens = engine, tokens
            case events.GroupKept(prompt=prompt, attempt=attempt):
                if group := self._groups.get((prompt, attempt)):
                    group.fate = Fate.KEPT
            case events.GroupCarried(prompt=prompt, attempt=attempt):
                self._give_up(prompt, attempt, Fate.CARRIED, time)
            case events.Paused(sample=sample, engine=engine, tokens=tokens):
                for one in self._latest(sample):
                    one.engine, one.tokens, one.stored = engine, tokens - one.begun, tokens
            case events.GroupAdopted(round=number, prompt=prompt, attempt=attempt):
                self._adopt(number, prompt, attempt)
            case events.Resumed(samples=samples):
                for sample in samples:
                    self._resume(sample, time)
            case events.GroupDeferred(prompt=prompt, attempt=attempt):
                self._give_up(prompt, attempt, Fate.DEFERRED, time)
            case events.GroupDropped(prompt=prompt, attempt=attempt):
                self._give_up(prompt, attempt, Fate.DROPPED, time)
            case events.RoundClosed(round=number):
                if round_ := self._rounds.get(number):
                    round_.closed = time
            case events.StepStarted(step=step, round=number):
                self._working[Work.TRAIN] = step, time
                if round_ := self._rounds.get(number):
                    round_.step = step
            case events.StepFailed():
                self._end(Work.TRAIN, time, done=False)
            case events.StepCommitted(samples=samples, dropped=dropped):
                self._end(Work.TRAIN, time, done=True)
                for prompt, attempt in {(s.prompt, s.attempt) for s in samples} if dropped else ():
                    self._give_up(prompt, attempt, Fate.DROPPED, time)
            case events.PublishStarted(version=version):
                self._working[Work.PUBLISH] = version, time
            case events.Published():
                self._end(Work.PUBLISH, time, done=True)
        self._now = time

    def timeline(self) -> Timeline:
        now = self._now or 0.0
        for work in tuple(self._working):
            self._end(work, now, done=False)
        rounds = tuple(round_.frozen(now) for round_ in self._rounds.values())
        spans = tuple(sorted(self._spans, key=lambda span: span.start))
        pools = tuple(
            Pool(name, tuple(sorted(asked)), tuple(self._cpus.get(name, ())))
            for name, asked in sorted(self._asked.items())
        )
        return Timeline(rounds, spans, tuple(self._gaps), now, pools)

    @property
    def _step(self) -> int:
        """The newest step."""
        return max((round_.step or 0 for round_ in self._rounds.values()), default=0)

    def _start(self, time: float) -> None:
        """Whatever ran in the incarnation before is lost; nothing is known of it after that incarnation's last event."""
        if self._now is None:
            return
        for work in tuple(self._working):
            self._end(work, self._now, done=False)
        for group in self._groups.values():
            for one in (one for index in range(len(group.tries)) for one in group.latest(index)):
                paused = one.fate is Fate.CARRIED and one.engine is None
                if one.end is None or paused:
                    one.fate, one.end = Fate.LOST, self._now if one.end is None else one.end
        for asked in self._asked.values():
            asked.append((self._now, 0))
        self._gaps.append(Gap(self._now, time))

    def _launch(self, body: events.Launched, time: float) -> None:
        if round_ := self._rounds.get(body.round):
            tries = [[Try(time)] for _ in range(body.samples)]
            group = OpenGroup(body.prompt, body.attempt, tries, self._domains.get(body.prompt, ""))
            self._groups[body.prompt, body.attempt] = group
            round_.groups.append(group)

    def _latest(self, sample: SampleId) -> list[Try]:
        """The sample's last try; none if it was launched before the log begins."""
        group = self._groups.get((sample.prompt, sample.attempt))
        return group.latest(sample.index) if group else []

    def _adopt(self, number: int, prompt: PromptId, attempt: int) -> None:
        before, round_ = self._groups.get((prompt, attempt)), self._rounds.get(number)
        if before and round_:
            group = OpenGroup(prompt, attempt, [[] for _ in before.tries], before.domain, before.seats, before=before)
            self._groups[prompt, attempt] = group
            round_.groups.append(group)

    def _resume(self, sample: SampleId, time: float) -> None:
        for one in self._latest(sample):
            group = self._groups[sample.prompt, sample.attempt]
            group.tries[sample.index].append(Try(time, one.stored))

    def _give_up(self, prompt: PromptId, attempt: int, fate: Fate, time: float) -> None:
        if group := self._groups.get((prompt, attempt)):
            group.give_up(fate, time)

    def _end(self, work: Work, time: float, *, done: bool) -> None:
        if work in self._working:
            step, start = self._working.pop(work)
            self._spans.append(Span(work, step, start, time, done))


@dataclass(slots=True)
class Try:
    """One try at a sample, from the tokens that it had `begun` with. `fate` stays None for what the group decides.

    `stored` are the tokens after which the next try continues.
    """

    start: float
    begun: int = 0
    end: float | None = None
    engine: str | None = None
    tokens: int = 0
    fate: Fate | None = None
    stored: int = 0


@dataclass(slots=True)
class OpenGroup:
    """One attempt at a prompt, in one round. `tries` has those of each sample.

    `seats` are the samples that were graded: only those that count are, and they count for good. A group that a
    later round adopts keeps its seats there, and is `before` that one.
    """

    prompt: PromptId
    attempt: int
    tries: list[list[Try]]
    domain: str = ""
    seats: set[int] = field(default_factory=set)
    fate: Fate = Fate.OPEN
    before: OpenGroup | None = None

    def latest(self, index: int) -> list[Try]:
        """The last try at a sample, perhaps in an earlier round."""
        return self.tries[index][-1:] or (self.before.latest(index) if self.before else [])

    def give_up(self, fate: Fate, time: float) -> None:
        """All of it ends; what was lost or surplus before stays so."""
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
