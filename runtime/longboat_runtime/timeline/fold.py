"""Events of a log, folded into rounds and bars. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.timeline.bars import Bar, Fate, Gap, Pool, Round, Span, Timeline, Work


def fold(log: Iterable[Entry]) -> Timeline:
    """Folds events, which come in the order of their numbers, into a timeline. Rounds opened before the first of them aren't in it."""
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

    def take(self, event: Entry) -> None:
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
                for try_ in self._latest(sample):
                    try_.end, try_.engine, try_.tokens = time, engine, tokens - try_.begun
            case events.Lost(sample=sample, begun=begun):
                for try_ in self._latest(sample):
                    try_.fate, try_.end = Fate.LOST, time if try_.end is None else try_.end
                    try_.stored = begun[-1].end if begun else 0
            case events.Moved(sample=sample, tokens=tokens, source=source):
                for try_ in self._latest(sample):
                    try_.fate, try_.end, try_.engine, try_.tokens = Fate.MOVED, time, source, tokens - try_.begun
                    try_.stored = tokens
                self._resume(sample, time)
            case events.Relaunched(sample=sample):
                self._resume(sample, time)
            case measurements.Reshaped(seconds=seconds, failure=failure):
                self._spans.append(Span(Work.RESHAPE, self._step, time - sum(seconds.values()), time, not failure))
            case measurements.PodDrained(seconds=duration):
                self._spans.append(Span(Work.DRAIN, self._step, time - duration, time, done=True))
            case measurements.RoundGraded(round=number, pools=pools):
                if round_ := self._rounds.get(number):
                    for name, pool in pools.items():
                        self._asked.setdefault(name, []).extend(
                            (round_.opened + at, grades) for at, grades in pool.asked
                        )
            case measurements.CpusGranted(pools=granted):
                for name, cpus in granted.items():
                    self._cpus.setdefault(name, []).append((time, cpus))
            case events.Graded(sample=sample):
                if group := self._groups.get((sample.prompt, sample.attempt)):
                    group.seats.add(sample.index)
            case events.Aborted(samples=samples):
                for try_ in (try_ for sample in samples for try_ in self._latest(sample) if try_.end is None):
                    try_.fate, try_.end = Fate.SURPLUS, time
            case events.Stopped(sample=sample, engine=engine, tokens=tokens):
                for try_ in (try_ for try_ in self._latest(sample) if try_.engine is None):
                    try_.engine, try_.tokens = engine, tokens - try_.begun
            case events.GroupKept(prompt=prompt, attempt=attempt):
                if group := self._groups.get((prompt, attempt)):
                    group.fate = Fate.KEPT
            case events.GroupCarried(prompt=prompt, attempt=attempt):
                self._give_up(prompt, attempt, Fate.CARRIED, time)
            case events.Paused(sample=sample, engine=engine, tokens=tokens):
                for try_ in self._latest(sample):
                    try_.engine, try_.tokens, try_.stored = engine, tokens - try_.begun, tokens
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
            case events.ChunkStarted(step=step):
                self._working[Work.STREAM] = step, time
            case events.ChunkDone():
                self._end(Work.STREAM, time, done=True)
            case events.ChunksLost():
                self._end(Work.STREAM, time, done=False)
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
            Pool(name, tuple(sorted(course)), tuple(self._cpus.get(name, ())))
            for name, course in sorted(self._asked.items())
        )
        return Timeline(rounds, spans, tuple(self._gaps), now, pools)

    @property
    def _step(self) -> int:
        """The newest step."""
        return max((round_.step or 0 for round_ in self._rounds.values()), default=0)

    def _start(self, time: float) -> None:
        """Ends, at the last event before this one, what the incarnation before left running: samples are lost, work isn't done."""
        if self._now is None:
            return
        for work in tuple(self._working):
            self._end(work, self._now, done=False)
        for group in self._groups.values():
            for try_ in (try_ for index in range(len(group.tries)) for try_ in group.latest(index)):
                paused = try_.fate is Fate.CARRIED and try_.engine is None
                if try_.end is None or paused:
                    try_.fate, try_.end = Fate.LOST, self._now if try_.end is None else try_.end
        for course in self._asked.values():
            course.append((self._now, 0))
        self._gaps.append(Gap(self._now, time))

    def _launch(self, body: events.Launched, time: float) -> None:
        if round_ := self._rounds.get(body.round):
            tries = [[Try(time)] for _ in range(body.samples)]
            group = OpenGroup(body.prompt, body.attempt, tries, self._domains.get(body.prompt, ""))
            self._groups[body.prompt, body.attempt] = group
            round_.groups.append(group)

    def _latest(self, sample: SampleId) -> list[Try]:
        """Returns a list with the sample's last try; empty if its launch isn't in the timeline."""
        group = self._groups.get((sample.prompt, sample.attempt))
        return group.latest(sample.index) if group else []

    def _adopt(self, number: int, prompt: PromptId, attempt: int) -> None:
        before, round_ = self._groups.get((prompt, attempt)), self._rounds.get(number)
        if before and round_:
            group = OpenGroup(prompt, attempt, [[] for _ in before.tries], before.domain, before.seats, before=before)
            self._groups[prompt, attempt] = group
            round_.groups.append(group)

    def _resume(self, sample: SampleId, time: float) -> None:
        for try_ in self._latest(sample):
            group = self._groups[sample.prompt, sample.attempt]
            group.tries[sample.index].append(Try(time, try_.stored))

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
        """Returns a list with the last try at a sample, perhaps in an earlier round; empty if there is none."""
        return self.tries[index][-1:] or (self.before.latest(index) if self.before else [])

    def give_up(self, fate: Fate, time: float) -> None:
        """Gives the group this fate, and its tries too unless they have one (lost, say). Those that still run end at `time`."""
        self.fate = fate
        for tries in self.tries:
            for try_ in tries:
                try_.fate = try_.fate or fate
                try_.end = time if try_.end is None else try_.end

    def bars(self, end: float) -> list[Bar]:
        """Makes a bar for each try in this round; those that still run end at `end`."""
        return [
            Bar(
                SampleId(*self.prompt, self.attempt, index),
                try_.start,
                end if try_.end is None else try_.end,
                try_.engine,
                try_.tokens,
                self._fate(try_, index),
                self.domain,
            )
            for index, tries in enumerate(self.tries)
            for try_ in tries
        ]

    def _fate(self, try_: Try, index: int) -> Fate:
        if try_.fate is not None:
            return try_.fate
        if try_.end is None or self.fate is not Fate.KEPT:
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
        """Returns the round as far as the log tells it; tries that still run end at `end`, the time of its last event."""
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
