"""A job's run as discrete events: the policy, ledger and router of production; engines, graders and trainer timed by a site. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.streaming import Streaming
from longboat_runtime.rounds.work import RoundWorks
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId
from longboat_runtime.simulate.chance import uniform
from longboat_runtime.simulate.engine import Response
from longboat_runtime.simulate.episode import Episode
from longboat_runtime.simulate.fleet import RoundLoads, SimulatedFleet
from longboat_runtime.simulate.shapes import FinishedRound, FixedShape
from longboat_runtime.simulate.site import Site
from longboat_runtime.simulate.turns import SampleDistribution, Turn


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One optimizer step and the round that fed it; seconds since the commit before, or since the start.

    `rollout` are those in which samples ran, as the driver's stage `generate` counts them; `seconds` all of them. `trained` counts
    samples; tokens are those that the model drew. `generated` are those that engines gave back since the step before, stopped ones included.
    With shapes, engines had at most `tensor_parallel` devices each, and preempted so often, while the round was the newest.
    `streamed` are tokens trained in `chunks`, before the step; `overlap` are the seconds of chunks in which samples ran.
    """

    step: int
    kind: RoundKind
    rollout: float
    seconds: float
    trained: int
    generated: int
    kept: int
    tensor_parallel: int = 0
    preemptions: int = 0
    chunks: int = 0
    streamed: int = 0
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """All steps of a run.

    `tokens_most` is what the sequences of one engine by a curve, prompts included, amounted to at most at any time. Reshapes of
    engines began `reshapes` times.
    """

    steps: Sequence[SimulatedStep]
    tokens_most: int
    reshapes: int = 0

    @property
    def preemptions(self) -> int:
        """Preemptions of all rounds that were trained."""
        return sum(step.preemptions for step in self.steps)

    @property
    def rollout_per_sample(self) -> float:
        """Rollout seconds for each trained sample."""
        return sum(step.rollout for step in self.steps) / sum(step.trained for step in self.steps)

    @property
    def seconds_per_sample(self) -> float:
        """Seconds for each trained sample."""
        return sum(step.seconds for step in self.steps) / sum(step.trained for step in self.steps)

    @property
    def rollout_per_round(self) -> float:
        """Mean rollout seconds of a round."""
        return sum(step.rollout for step in self.steps) / len(self.steps)

    @property
    def generated_to_kept(self) -> float:
        """Response tokens made for each one trained."""
        return sum(step.generated for step in self.steps) / sum(step.kept for step in self.steps)

    @property
    def streamed_share(self) -> float:
        """Share of the trained response tokens that were trained while their round was open."""
        return sum(step.streamed for step in self.steps) / sum(step.kept for step in self.steps)

    @property
    def long_share(self) -> float:
        """Share of long rounds."""
        return sum(step.kind is RoundKind.LONG for step in self.steps) / len(self.steps)


# The next prompts of a domain (of the whole dataset where that is empty), given how many of all were drawn before, and how many to draw.
Source = Callable[[int, int, str], Sequence[PromptId]]


def number_prompts(drawn: int, count: int, domain: str) -> list[PromptId]:
    """Draws the next `count` prompts, after `drawn` others, of a source that never repeats one and has no domains."""
    del domain
    return [PromptId(0, row) for row in range(drawn, drawn + count)]


def simulate(
    policy: Policy,
    group_size: int,
    site: Site,
    distribution: SampleDistribution,
    steps: int,
    *,
    source: Source = number_prompts,
    most_steps: float = inf,
) -> SimulatedRun:
    """Runs a job of so many `steps` to its end, or until `most_steps` are committed.

    The same arguments give the same run. Raises ValueError if no step was made.
    """
    run = Simulation(policy, group_size, site, distribution, steps, source)
    while run.ledger.step < most_steps and run.proceed():
        pass
    if not run.steps:
        raise ValueError("the run ended without a step")
    return SimulatedRun(tuple(run.steps), round(run.fleet.tokens_most), run.reshapes)


class Simulation:
    """One run. Things happen in the order of their times; at equal times in the order they were begun, and the ends of turns last."""

    def __init__(
        self,
        policy: Policy,
        group_size: int,
        site: Site,
        distribution: SampleDistribution,
        steps: int,
        source: Source,
    ) -> None:
        deciding = policy if site.chunk_tokens is None else Streaming(policy, site.chunk_tokens)
        self._loop = RoundLoop(deciding, self, Ledger(group_size, steps), 1)
        self.ledger, self.view = self._loop.ledger, self._loop.view
        self._site, self._distribution, self._source = site, distribution, source
        self._policy = policy
        self._planner = site.shapes.planner if site.shapes else None
        self._episodes: dict[SampleId, Episode] = {}
        self.fleet = SimulatedFleet(site, self._episodes)
        self.reshapes = 0
        self._time = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._begun = 0
        self._graders = [0.0] * site.graders
        self.steps: list[SimulatedStep] = []
        self._kinds: dict[int, RoundKind] = {}
        self._tokens: dict[SampleId, int] = {}
        self._generated = 0
        self._committed_at = 0.0
        self._rolling_since: float | None = None
        self._rollout_seconds = 0.0
        self._chunks, self._streamed, self._overlap = 0, 0, 0.0
        self._loads = RoundLoads()
        self._measured: dict[int, measurements.RoundMeasured] = {}
        self._works = RoundWorks()
        self._present = 0
        self._reshaping_since: float | None = None
        self._reshaped_in: dict[int, float] = {}
        self._awaiting: Callable[[], None] | None = None
        self._happens(events.Started(0))

    def proceed(self) -> bool:
        """Makes the next thing happen; False if there is none."""
        name, end = self.fleet.next_end()
        if self._agenda and self._agenda[0][0] <= end:
            self._time, _, happen = heapq.heappop(self._agenda)
            happen()
        elif end < inf:
            self._time = end
            for response in self.fleet.ended(name, end):
                self._episodes[response.sample].draw(response)
                self._turn_ended(name, response.sample)
        else:
            return False
        return True

    # Requests of the loop

    def now(self) -> float:
        return self._time

    def draw(self, count: int, domain: str) -> Sequence[PromptId]:
        return self._source(self.view.drawn, count, domain)

    def carry_out(self, event: Event, effects: Effects) -> None:
        if self._planner is not None and not isinstance(self._planner, FixedShape):
            self._works.fold(event)
        match event.body:
            case events.RoundOpened(round=number, kind=kind):
                self._kinds[number] = kind
                if self._planner is not None and not self.fleet.engines and self._reshaping_since is None:
                    self._present = self._planner.size
                    self.fleet.start(self.fleet.pods, self._present, self.view.serving, self._time)
                self._loads.begin(number, self.fleet.take_load(self._time))
            case events.Launched(prompt=prompt, attempt=attempt, samples=samples):
                self._launch([SampleId(*prompt, attempt, index) for index in range(samples)])
            case events.Relaunched(sample=sample):
                self._launch([sample])
            case events.Resumed(samples=resumed):
                self._launch(resumed)
            case events.Generated(sample=sample, tokens=tokens):
                self._tokens[sample] = tokens
                record = self.view.sample(sample)
                if record is not None and record.state is SampleState.GENERATED:
                    self._grade(sample)
            case events.ChunkStarted() as chunk:
                self._accumulate(chunk)
            case events.StepStarted(step=step, round=number):
                self._train(step, number)
            case events.StepCommitted() as committed:
                self._commit(committed)
            case events.PublishStarted(version=version):
                self._publish(version)
        if effects.stop:
            self._later(self._site.latency, partial(self._stop, effects.stop))
        if effects.pause:
            self._later(self._site.latency, partial(self._pause, effects.pause))
        self._count_rollout()

    # Engines, graders and trainer

    def _happens(self, body: Body) -> None:
        self._loop.happened(body)
        self._count_rollout()

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        self._begun += 1
        heapq.heappush(self._agenda, (self._time + seconds, self._begun, happen))

    def _launch(self, samples: Sequence[SampleId]) -> None:
        self._later(self._site.latency, partial(self._submit, samples))

    def _submit(self, samples: Sequence[SampleId]) -> None:
        for sample in samples:
            if sample not in self._episodes:
                drawn = self._distribution(sample)
                turns = drawn if isinstance(drawn, Sequence) else (Turn(drawn),)
                self._episodes[sample] = Episode(turns, self._site.prompt_tokens)
            episode = self._episodes[sample]
            if self._time < episode.back_at or episode.done:
                self._leave(sample)
        self.fleet.submit(samples, self._time)

    def _turn_ended(self, engine: str, sample: SampleId) -> None:
        """Has a sample leave for its environment; one that is being stopped or paused is given back instead, unless it has ended."""
        episode = self._episodes[sample]
        away = episode.end_turn(engine, self._time)
        if (away or not episode.done) and not self._runs(sample):
            self.fleet.finish(sample, self._time)
            self._give_back(engine, sample)
        elif away:
            self._leave(sample)
        else:
            self._continue(sample)

    def _leave(self, sample: SampleId) -> None:
        self.fleet.leave(sample)
        self._later(max(0.0, self._episodes[sample].back_at - self._time), partial(self._back, sample))

    def _back(self, sample: SampleId) -> None:
        if self.fleet.back(sample):
            self._continue(sample)

    def _continue(self, sample: SampleId) -> None:
        """Begins the sample's next turn, or ends its episode after the last one."""
        episode = self._episodes[sample]
        if episode.done:
            self.fleet.finish(sample, self._time)
            self._later(self._site.latency, partial(self._finished, episode.engine, sample))
        else:
            self.fleet.continues(sample, self._time)

    def _runs(self, sample: SampleId) -> bool:
        record = self.view.sample(sample)
        return record is not None and record.state is SampleState.RUNNING

    def _stop(self, samples: Sequence[SampleId]) -> None:
        self._take_back(samples, self._stopped)

    def _pause(self, samples: Sequence[SampleId]) -> None:
        self._take_back(samples, self._paused)

    def _take_back(self, samples: Sequence[SampleId], then: Callable[[str, SampleId], None]) -> None:
        for engine, response in self.fleet.take_back(samples, self._time):
            self._episodes[response.sample].draw(response)
            self._later(self._site.latency, partial(then, engine, response.sample))

    def _give_back(self, engine: str, sample: SampleId) -> None:
        """Gives back what there is of a sample that is being stopped or paused."""
        record = self.view.sample(sample)
        then = self._paused if record and record.state is SampleState.PAUSED else self._stopped
        self._later(self._site.latency, partial(then, engine, sample))

    def _finished(self, engine: str, sample: SampleId) -> None:
        episode, prompt = self._episodes.pop(sample), self._site.prompt_tokens
        self._generated += episode.report()
        spans, segments = episode.spans, episode.segments
        self._happens(events.Generated(sample, prompt, episode.tokens, FinishReason.STOP, spans, engine, segments))

    def _stopped(self, engine: str, sample: SampleId) -> None:
        episode = self._episodes.pop(sample)
        self._generated += episode.report()
        self._happens(events.Stopped(sample, episode.tokens, engine))

    def _paused(self, engine: str, sample: SampleId) -> None:
        episode = self._episodes[sample]
        self._generated += episode.report()
        self._happens(events.Paused(sample, episode.tokens, episode.spans, engine))

    def _grade(self, sample: SampleId) -> None:
        """Gives the sample to the first grader that is free; samples wait in order."""
        done = max(self._time, heapq.heappop(self._graders)) + self._site.grading
        heapq.heappush(self._graders, done)
        flat = uniform("reward", sample.epoch, sample.row) < self._site.flat
        score = 0.0 if flat else float(sample.index % 2)
        graded = events.Graded(sample, GradeKind.SCORED, score, self._site.grading)
        self._later(done - self._time, partial(self._happens, graded))

    def _accumulate(self, chunk: events.ChunkStarted) -> None:
        samples = (sample for prompt in chunk.prompts for sample in self.ledger.groups[prompt].counted_ids)
        tokens = self._token_count(samples)
        self._chunks, self._streamed = self._chunks + 1, self._streamed + tokens
        before = self._rollout()

        def accumulated() -> None:
            self._overlap += self._rollout() - before
            self._happens(events.ChunkDone(chunk.step, chunk.number))

        self._later(self._site.chunk + self._site.update_token * tokens, accumulated)

    def _token_count(self, samples: Iterable[SampleId]) -> int:
        return sum(self._tokens[sample] for sample in samples)

    def _train(self, step: int, number: int) -> None:
        """Trains as the driver does, and measures the round once responses that engines were told to stop are back."""
        streamed, latency = self.ledger.rounds[number].streamed, self._site.latency
        rest = (sample for sample in self._batch(number) if sample.prompt not in streamed)
        seconds = self._site.update + self._site.update_token * self._token_count(rest)

        def answered() -> None:
            self._later(latency, partial(self._measure, number))
            self._later(max(latency, seconds - latency), partial(self._trained, step, number))

        self._later(latency, answered)

    def _trained(self, step: int, number: int) -> None:
        self._happens(events.StepCommitted(step, step, number, self._batch(number)))

    def _batch(self, number: int) -> tuple[SampleId, ...]:
        groups = (self.ledger.groups[prompt] for prompt in self.ledger.rounds[number].kept)
        return tuple(sorted(sample for group in groups for sample in group.counted_ids))

    def _commit(self, committed: events.StepCommitted) -> None:
        self._count_rollout()
        self._rollout_seconds = self._rollout()
        if self._rolling_since is not None:
            self._rolling_since = self._time
        measured = self._measured.pop(committed.round, None)
        self.steps.append(
            SimulatedStep(
                step=committed.step,
                kind=self._kinds.pop(committed.round),
                rollout=self._rollout_seconds,
                seconds=self._time - self._committed_at,
                trained=len(committed.samples),
                generated=self._generated,
                kept=self._token_count(committed.samples),
                tensor_parallel=measured.tensor_parallel if measured else 0,
                preemptions=measured.preemptions if measured else 0,
                chunks=self._chunks,
                streamed=self._streamed,
                overlap=self._overlap,
            )
        )
        prompts = {sample.prompt for sample in committed.samples}
        self._tokens = {sample: tokens for sample, tokens in self._tokens.items() if sample.prompt not in prompts}
        self._committed_at, self._rollout_seconds, self._generated = self._time, 0.0, 0
        self._chunks, self._streamed, self._overlap = 0, 0, 0.0

    def _publish(self, version: int) -> None:
        """Publishes as the driver does, once engines have their shape."""
        if self._reshaping_since is not None:
            self._awaiting = partial(self._publish, version)
            return
        self.fleet.pause(self._time)
        self._later(self._site.publish, partial(self._published, version))

    def _published(self, version: int) -> None:
        self.fleet.serve(version, self._time)
        self._happens(events.Published(version))

    # Shapes

    def _measure(self, number: int) -> None:
        """Measures a finished round as the driver does, and the planner learns from it.

        Begins a reshape if the planner wants another size, other rounds follow, and none is under way.
        """
        load = self._loads.finish(number, self.fleet.take_load(self._time))
        if self._planner is None or load is None:
            return
        engines = len(self.fleet.engines)
        measured = load.measured(number, self._kinds[number], engines, self._works.for_round(number))
        self._measured[number] = measured
        remaining = self.view.steps - self.view.step - 1
        limits = Limits(self._site.max_sequences, self._site.max_tokens)
        finished = FinishedRound(measured, remaining, limits, self._reshaped_in)
        self._planner, self._reshaped_in = self._planner.after_round(finished), {}
        wanted = self._planner.size
        if remaining > 0 and wanted != self._present and self._reshaping_since is None:
            pods = self.fleet.pods
            self._reshaping_since, self.reshapes = self._time, self.reshapes + 1
            self._reshape([[pod] for pod in pods] if isinstance(self._policy, BoundedAsync) else [pods], wanted)

    def _reshape(self, groups: Sequence[Sequence[int]], size: int) -> None:
        """Reshapes as the fleet does: pods one group after the other. What runs there continues elsewhere, or once engines are back."""
        shapes = self._site.shapes
        if not groups or shapes is None:
            self._reshaped_in[size] = round(self._time - (self._reshaping_since or 0.0), 3)
            self._present, self._reshaping_since = size, None
            if self._awaiting is not None:
                then, self._awaiting = self._awaiting, None
                then()
            return
        pods, *rest = groups
        for name, response in self.fleet.end(pods, self._time):
            self._move(name, response)
        self._later(shapes.reshape_seconds.get(size, 0.0), partial(self._reshaped, pods, rest, size))

    def _reshaped(self, pods: Sequence[int], rest: Sequence[Sequence[int]], size: int) -> None:
        self.fleet.start(pods, size, self.view.serving, self._time)
        self._reshape(rest, size)

    def _move(self, engine: str, response: Response) -> None:
        """Moves a sample elsewhere, unless it has just ended or is being stopped or paused."""
        sample, episode = response.sample, self._episodes[response.sample]
        if episode.draw(response) and response.tokens:
            self._turn_ended(engine, sample)
        elif not self._runs(sample):
            self.fleet.finish(sample, self._time)
            self._give_back(engine, sample)
        if sample in self.fleet.playing:
            self._generated += episode.report()
            self._happens(events.Moved(sample, episode.tokens, episode.spans, engine, ""))
            self._submit([sample])

    def _count_rollout(self) -> None:
        """Counts the time of rollout, which runs while a sample of a live group does."""
        running = self.view.counts[SampleState.RUNNING] > 0
        if running and self._rolling_since is None:
            self._rolling_since = self._time
        elif not running and self._rolling_since is not None:
            self._rollout_seconds, self._rolling_since = self._rollout(), None

    def _rollout(self) -> float:
        """Returns the seconds of rollout since the commit before."""
        running = 0.0 if self._rolling_since is None else self._time - self._rolling_since
        return self._rollout_seconds + running
