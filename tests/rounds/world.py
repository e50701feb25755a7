"""A driver without components: folds events, asks the policy, and lets a test decide what finishes when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import STORED, SampleState
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.samples import FinishReason, GradeKind, LossCause, PromptId, SampleId, VersionSpan

EPOCH_ROWS = 5


class World:
    """`boundary` is the state that a checkpoint of the last commit holds; `streaming`, `publishing` and `training` are the trainer's
    tasks, `stopping` and `pausing` the samples that engines have been told to stop and to pause. `accumulated` are the samples whose
    gradient the trainer has.

    With `episodes` samples are played: each waits for a slot before it runs, and is `playing` from then on.

    `drawn` has the tokens drawn so far of running samples, `made` those of finished samples. `oldest` is how many versions behind its
    step the oldest trained token was. `steps` is the number of steps of the job, by default that of the recorded decisions; `wanted`
    is the number that its spec now has.
    """

    def __init__(
        self,
        policy: Policy,
        group_size: int,
        score: Callable[[SampleId], float] = lambda sample: float((sample.index + sample.row) % 2),
        steps: int = 5,
        *,
        episodes: bool = False,
    ) -> None:
        self.policy = policy
        self.take_over(Ledger(group_size, steps), 0)
        self.wanted = steps
        self.group_size, self.score, self.episodes = group_size, score, episodes
        self.log: list[Event] = []
        self.late: list[events.Body] = []
        self.training: list[int] = []
        self.publishing: list[int] = []
        self.streaming: list[events.ChunkStarted] = []
        self.accumulated: list[SampleId] = []
        self.stopping: list[SampleId] = []
        self.pausing: list[SampleId] = []
        self.drawn: dict[SampleId, tuple[VersionSpan, ...]] = {}
        self.made: dict[SampleId, tuple[VersionSpan, ...]] = {}
        self.oldest: dict[int, int] = {}
        self.fate: dict[PromptId, str] = {}
        self.batches: dict[int, tuple[SampleId, ...]] = {}
        self.boundary = (to_snapshot(self.ledger), 0, dict(self.fate), dict(self.batches), dict(self.made))

    def take_over(self, ledger: Ledger, incarnation: int) -> None:
        """Folds the events of another incarnation into `ledger` from now on."""
        self.loop = RoundLoop(self.policy, self, ledger, incarnation)
        self.ledger, self.view, self.incarnation = ledger, self.loop.view, incarnation

    def record(self, body: events.Body) -> bool:
        return self.loop.happened(body)

    def start(self) -> None:
        """Starts an incarnation from the last boundary; everything later is dead."""
        snapshot, offset, fate, batches, made = self.boundary
        self.take_over(from_snapshot(snapshot), self.incarnation + 1)
        self.late += [event.body for event in self.log[offset:]]
        self.log, self.fate, self.batches = self.log[:offset], dict(fate), dict(batches)
        self.made = dict(made)
        self.training, self.publishing, self.stopping, self.pausing, self.drawn = [], [], [], [], {}
        self.streaming, self.accumulated = [], []
        self.record(events.Started(self.ledger.step))
        if self.wanted != self.ledger.steps:
            self.edit(self.wanted)

    def edit(self, steps: int) -> None:
        """Edits the number of steps in the spec."""
        self.wanted = steps
        assert self.record(events.SpecChanged(steps, checkpoint_every_steps=1, checkpoint_keep=1))

    def now(self) -> float:
        return float(len(self.log))

    def carry_out(self, event: Event, effects: Effects) -> None:
        self.noted(event)
        if effects.stop:
            self.stop(effects.stop)
        if effects.pause:
            self.pause(effects.pause)

    def noted(self, event: Event) -> None:
        self.log.append(event)
        match event.body:
            case events.Launched(prompt=prompt):
                self.drawn.update(dict.fromkeys(self.ledger.groups[prompt].sample_ids, ()))
            case events.Relaunched(sample=sample):
                self.drawn[sample] = self.ledger.sample(sample).stored
            case events.Resumed(samples=samples):
                self.drawn.update({sample: self.ledger.sample(sample).stored for sample in samples})
            case events.GroupDropped(prompt=prompt):
                assert prompt not in self.fate, f"{prompt} was given up twice"
                self.fate[prompt] = "dropped"
                self.pausing = [sample for sample in self.pausing if sample.prompt != prompt]
            case events.ChunkStarted() as chunk:
                assert [*self.streaming, *self.training, *self.publishing] == [], "the trainer does one thing at a time"
                self.streaming.append(chunk)
            case events.StepStarted(round=number):
                assert not self.streaming, "the trainer does one thing at a time"
                self.training.append(number)
            case events.PublishStarted(version=version):
                assert not self.streaming, "the trainer does one thing at a time"
                self.publishing.append(version)
            case events.StepCommitted(step=step, samples=samples, dropped=dropped):
                if dropped is None:
                    self.batches[step] = samples
                for prompt in {sample.prompt for sample in samples}:
                    assert prompt not in self.fate, f"{prompt} was trained twice"
                    self.fate[prompt] = "trained" if dropped is None else "dropped"
                self.boundary = (
                    to_snapshot(self.ledger),
                    len(self.log),
                    dict(self.fate),
                    dict(self.batches),
                    dict(self.made),
                )

    def stop(self, samples: Sequence[SampleId]) -> None:
        self.stopping += samples

    def pause(self, samples: Sequence[SampleId]) -> None:
        for sample in samples:
            self._draw(sample, sample.index)
        self.pausing += samples

    def draw(self, count: int, domain: str) -> list[PromptId]:
        rows = [row for row in range(EPOCH_ROWS) if domain in ("", self.domain_of(row))]
        drawn = [event.body for event in self.log if isinstance(event.body, events.Drawn)]
        first = sum(len(body.prompts) for body in drawn if body.domain == domain)
        return [PromptId(number // len(rows), rows[number % len(rows)]) for number in range(first, first + count)]

    @staticmethod
    def domain_of(row: int) -> str:
        """The domain of a row: each letter stands for one row in five."""
        return "abbcc"[row % EPOCH_ROWS]

    # The work that engines, graders and the trainer have to do.

    def samples(self, state: SampleState) -> list[SampleId]:
        return [
            group.sample_id(sample.index)
            for group in self.ledger.groups.values()
            for sample in group.samples
            if sample.state is state
        ]

    def begin_episode(self, sample: SampleId) -> bool:
        """A pod has a slot for an episode."""
        return self.record(events.EpisodeStarted(sample, 0.5))

    def lose_episode(self, sample: SampleId, *, held_up: bool = False) -> bool:
        """An environment fails, or its pod goes."""
        return self.record(events.Lost(sample, "no door", cause=LossCause.ENVIRONMENT, held_up=held_up))

    def finish(self, sample: SampleId, version: int | None = None) -> bool:
        record = self.ledger.sample(sample)
        if self.episodes and record and record.state is SampleState.RUNNING and not record.playing:
            assert self.begin_episode(sample)
        self._draw(sample, 3 + sample.index, version)
        self.made[sample] = spans = self.drawn[sample]
        if sample in self.pausing:
            self.pausing.remove(sample)
        played = {"turns": 2, "environment_seconds": 1.5 + sample.index} if self.episodes else {}
        return self.record(events.Generated(sample, 2, spans[-1].end, FinishReason.STOP, spans, "engine-0", **played))

    def _draw(self, sample: SampleId, tokens: int, version: int | None = None) -> None:
        """An engine draws this many tokens of a sample."""
        version = self.ledger.serving if version is None else version
        assert version is not None
        spans = self.drawn[sample]
        start = spans[-1].end if spans else 0
        if spans and spans[-1].version == version:
            spans, start = spans[:-1], spans[-1].start
        if tokens:
            end = (self.drawn[sample][-1].end if self.drawn[sample] else 0) + tokens
            self.drawn[sample] = (*spans, VersionSpan(version, start, end))

    def grade(self, sample: SampleId, kind: GradeKind = GradeKind.SCORED) -> bool:
        score = self.score(sample) if kind is GradeKind.SCORED else 0.0
        parts = {"main": None} if kind is GradeKind.TIMEOUT else {}
        return self.record(events.Graded(sample, kind, score, 0.1, parts=parts))

    def move(self, sample: SampleId) -> bool:
        """Another engine continues a running sample."""
        self._draw(sample, 1)
        spans = self.drawn[sample]
        return self.record(events.Moved(sample, spans[-1].end, spans, "engine-0", "engine-1"))

    def lose(self, sample: SampleId, *, engine_died: bool = False) -> bool:
        """The engine of a sample is gone, and with it what it drew; the store has what came before. Or the store has lost the sample."""
        if sample in self.pausing:
            self.pausing.remove(sample)
        record = self.ledger.sample(sample)
        begun = record.stored if record and record.state not in STORED and not record.resumable else ()
        return self.record(events.Lost(sample, "engine is gone", engine_died, begun))

    def stopped(self, sample: SampleId, *, finished: bool = False) -> bool:
        """An engine returns a sample that it was told to stop; if `finished`, the response had ended before that."""
        self.stopping.remove(sample)
        if finished:
            return self.finish(sample)
        seconds = 0.5 if self.episodes else 0.0
        return self.record(events.Stopped(sample, 1 + sample.index, "engine-0", environment_seconds=seconds))

    def paused(self, sample: SampleId) -> bool:
        """An engine returns a sample that it was told to pause."""
        self.pausing.remove(sample)
        spans = self.drawn[sample]
        return self.record(events.Paused(sample, spans[-1].end if spans else 0, spans, "engine-0"))

    def accumulate(self, *, before_losses: bool = True) -> bool:
        """A chunk is done, or can't be read: its data is lost, unless it was read before."""
        if not self.streaming:
            return False
        chunk = self.streaming[0]
        samples = [sample for prompt in chunk.prompts for sample in self.ledger.groups[prompt].counted_ids]
        if not before_losses and any(sample in self.ledger.lost for sample in samples):
            return self.lose_chunks()
        self.streaming.clear()
        self.accumulated += samples
        return self.record(events.ChunkDone(chunk.step, chunk.number))

    def lose_chunks(self) -> bool:
        """A rank dies."""
        had = bool(self.accumulated or self.streaming)
        self.streaming, self.accumulated = [], []
        assert self.record(events.ChunksLost(self.ledger.step + 1)) == had
        return had

    def train(self, *, skipped: int = 0, dropped: DropReason | None = None) -> bool:
        """A step is done; the trainer skipped `skipped` minibatches; `dropped` is the reason if it skipped all of them."""
        if not self.training:
            return False
        round_ = self.ledger.rounds[self.training.pop(0)]
        step = self.ledger.step + 1
        if round_.missing:
            return self.record(events.StepFailed(step, round_.number, "data is gone"))
        samples = sorted(s for prompt in round_.kept for s in self.ledger.groups[prompt].counted_ids)
        rest = [sample for sample in samples if sample.prompt not in round_.streamed]
        assert sorted([*self.accumulated, *rest]) == samples, "every sample is trained once"
        self.accumulated = []
        spans = {sample: self.ledger.sample(sample).spans for sample in samples}
        assert spans == {sample: self.made[sample] for sample in samples}, (
            "token versions in the log are those that were drawn"
        )
        self.oldest[step] = max((step - 1 - span.version for of in spans.values() for span in of), default=0)
        dropped = dropped if samples else None
        return self.record(events.StepCommitted(step, step, round_.number, tuple(samples), skipped, dropped))

    def publish(self) -> bool:
        if not self.publishing:
            return False
        if self.ledger.serving is not None:
            for sample in self.samples(SampleState.RUNNING):
                self._draw(sample, 1)
        return self.record(events.Published(self.publishing.pop(0)))

    def run_until_training(self) -> None:
        while not self.training:
            running, generated = self.samples(SampleState.RUNNING), self.samples(SampleState.GENERATED)
            assert self.accumulate() or (self.finish(running[0]) if running else self.grade(generated[0]))

    def run(
        self, pick: Callable[[Sequence[SampleId]], SampleId] = lambda samples: samples[0], steps: float = inf
    ) -> None:
        """Runs until everything is finished or `steps` are made; `pick` chooses the sample to be generated or graded next."""
        while self.ledger.step < steps:
            if running := self.samples(SampleState.RUNNING):
                self.finish(pick(running))
            elif generated := self.samples(SampleState.GENERATED):
                self.grade(pick(generated))
            elif self.pausing:
                self.paused(pick(self.pausing))
            elif not (self.accumulate() or self.train() or self.publish()):
                return


def replay(log: Sequence[Event], group_size: int, steps: int) -> Ledger:
    """The ledger of a job that started with `steps` steps to make."""
    ledger = Ledger(group_size, steps)
    for event in log:
        ledger.apply(event)
    return ledger
