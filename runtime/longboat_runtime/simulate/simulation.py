"""A job's run as discrete events: the policy, ledger and router of production; engines, graders and trainer timed by a site. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from longboat_runtime.rollout.router import Router
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Body, Event, RoundKind
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan, joined
from longboat_runtime.simulate.chance import uniform
from longboat_runtime.simulate.engine import Response, SimulatedEngine
from longboat_runtime.simulate.lengths import LengthDistribution
from longboat_runtime.simulate.site import Site


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One optimizer step and the round that fed it; seconds since the commit before, or since the start.

    `rollout` are those in which samples ran, as the driver's stage `generate` counts them; `seconds` all of them. `trained` counts
    samples; tokens are of responses. `generated` are those that engines gave back since the step before, stopped ones included.
    """

    step: int
    kind: RoundKind
    rollout: float
    seconds: float
    trained: int
    generated: int
    kept: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """All steps of a run. `tokens_most` is what the sequences of one engine, prompts included, amounted to at most at any time."""

    steps: Sequence[SimulatedStep]
    tokens_most: int

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
    def long_share(self) -> float:
        """Share of long rounds."""
        return sum(step.kind is RoundKind.LONG for step in self.steps) / len(self.steps)


# The next prompts of a domain (of the whole dataset where that is empty), given how many of all were drawn before, and how many to draw.
Source = Callable[[int, int, str], Sequence[PromptId]]


def number_prompts(drawn: int, count: int, domain: str) -> list[PromptId]:
    """A source that never repeats a prompt, and has no domains."""
    del domain
    return [PromptId(0, row) for row in range(drawn, drawn + count)]


def simulate(
    policy: Policy,
    group_size: int,
    site: Site,
    lengths: LengthDistribution,
    steps: int,
    *,
    source: Source = number_prompts,
    most_steps: float = inf,
    outside: Mapping[int, Body] | None = None,
) -> SimulatedRun:
    """Runs a job of so many `steps` to its end, or until `most_steps` are committed.

    A function of its arguments: the same run every time. `outside` are events from outside by the number of the round, each of which
    comes right after that round was opened. Raises ValueError if no step was made.
    """
    run = Simulation(policy, group_size, site, lengths, steps, source, outside or {})
    while run.ledger.step < most_steps and run.proceed():
        pass
    if not run.steps:
        raise ValueError("the run ended without a step")
    return SimulatedRun(tuple(run.steps), round(max(engine.tokens_most for engine in run.engines.values())))


class Simulation:
    """One run. Things happen in the order of their times, at equal times in the order they were begun."""

    def __init__(
        self,
        policy: Policy,
        group_size: int,
        site: Site,
        lengths: LengthDistribution,
        steps: int,
        source: Source,
        outside: Mapping[int, Body],
    ) -> None:
        self._loop = RoundLoop(policy, self, Ledger(group_size, steps), 1)
        self.ledger, self.view = self._loop.ledger, self._loop.view
        self._site, self._lengths, self._source, self._outside = site, lengths, source, outside
        self.engines = {name: SimulatedEngine(name, site.max_sequences, site.curve) for name in site.names}
        self._router = Router()
        for name in self.engines:
            self._router.add(name)
        self._time = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._begun = 0
        self._graders = [0.0] * site.graders
        self._publishing = False
        self._held: list[SampleId] = []
        self.steps: list[SimulatedStep] = []
        self._kinds: dict[int, RoundKind] = {}
        self._tokens: dict[SampleId, int] = {}
        self._generated = 0
        self._committed_at = 0.0
        self._rolling_since: float | None = None
        self._rolled = 0.0
        self._happens(events.Started(0))

    def proceed(self) -> bool:
        """Makes the next thing happen; False if there is none."""
        name, end = min(((name, engine.next_end()) for name, engine in self.engines.items()), key=lambda item: item[1])
        if self._agenda and self._agenda[0][0] <= end:
            self._time, _, happen = heapq.heappop(self._agenda)
            happen()
        elif end < inf:
            self._time = end
            for response in self.engines[name].ended(end):
                self._router.finished(name, response.sample)
                self._later(self._site.latency, partial(self._finished, name, response))
        else:
            return False
        return True

    # What the loop asks for

    def now(self) -> float:
        return self._time

    def draw(self, count: int, domain: str) -> Sequence[PromptId]:
        return self._source(self.view.drawn, count, domain)

    def carry_out(self, event: Event, effects: Effects) -> None:
        match event.body:
            case events.RoundOpened(round=number, kind=kind):
                self._kinds[number] = kind
                if number in self._outside:
                    self._later(0.0, partial(self._happens, self._outside[number]))
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
        """As the fleet: nothing is sent while engines load weights, then all of it."""
        if self._publishing:
            self._held += samples
            return
        for name, there in self._router.route(samples).items():
            for sample in there:
                record = self.view.sample(sample)
                begun = record.begun_tokens if record else 0
                rest, prompt = self._lengths(sample) - begun, self._site.prompt_tokens + begun
                self.engines[name].submit(self._time, sample, rest, prompt)

    def _stop(self, samples: Sequence[SampleId]) -> None:
        self._take_back(samples, self._stopped)

    def _pause(self, samples: Sequence[SampleId]) -> None:
        self._take_back(samples, self._paused)

    def _take_back(self, samples: Sequence[SampleId], then: Callable[[str, Response], None]) -> None:
        for name, there in self._router.engines_of(samples).items():
            for sample in there:
                response = self.engines[name].stop(self._time, sample)
                if response is not None:
                    self._router.finished(name, sample)
                    self._later(self._site.latency, partial(then, name, response))

    def _finished(self, engine: str, response: Response) -> None:
        self._generated += response.tokens
        sample, prompt, spans = response.sample, self._site.prompt_tokens, self._spans(response)
        self._happens(events.Generated(sample, prompt, spans[-1].end, FinishReason.STOP, spans, engine))

    def _stopped(self, engine: str, response: Response) -> None:
        self._generated += response.tokens
        self._happens(events.Stopped(response.sample, response.tokens, engine))

    def _paused(self, engine: str, response: Response) -> None:
        self._generated += response.tokens
        spans = self._spans(response)
        self._happens(events.Paused(response.sample, spans[-1].end if spans else 0, spans, engine))

    def _spans(self, response: Response) -> tuple[VersionSpan, ...]:
        """Of all its tokens, those of before it was paused included."""
        record = self.view.sample(response.sample)
        return joined(record.begun if record else (), response.spans)

    def _grade(self, sample: SampleId) -> None:
        """The first grader that is free takes it; samples wait in order."""
        done = max(self._time, heapq.heappop(self._graders)) + self._site.grading
        heapq.heappush(self._graders, done)
        flat = uniform("reward", sample.epoch, sample.row) < self._site.flat
        score = 0.0 if flat else float(sample.index % 2)
        graded = events.Graded(sample, GradeKind.SCORED, score, self._site.grading)
        self._later(done - self._time, partial(self._happens, graded))

    def _train(self, step: int, number: int) -> None:
        batch = self._batch(number)
        seconds = self._site.update + self._site.update_token * sum(self._tokens[sample] for sample in batch)
        self._later(seconds, lambda: self._happens(events.StepCommitted(step, step, number, self._batch(number))))

    def _batch(self, number: int) -> tuple[SampleId, ...]:
        groups = (self.ledger.groups[prompt] for prompt in self.ledger.rounds[number].kept)
        return tuple(sorted(sample for group in groups for sample in group.counted_ids))

    def _commit(self, committed: events.StepCommitted) -> None:
        self._count_rollout()
        if self._rolling_since is not None:
            self._rolled += self._time - self._rolling_since
            self._rolling_since = self._time
        self.steps.append(
            SimulatedStep(
                step=committed.step,
                kind=self._kinds.pop(committed.round),
                rollout=self._rolled,
                seconds=self._time - self._committed_at,
                trained=len(committed.samples),
                generated=self._generated,
                kept=sum(self._tokens[sample] for sample in committed.samples),
            )
        )
        prompts = {sample.prompt for sample in committed.samples}
        self._tokens = {sample: tokens for sample, tokens in self._tokens.items() if sample.prompt not in prompts}
        self._committed_at, self._rolled, self._generated = self._time, 0.0, 0

    def _publish(self, version: int) -> None:
        self._publishing = True
        for engine in self.engines.values():
            engine.pause(self._time)
        self._later(self._site.publish, partial(self._published, version))

    def _published(self, version: int) -> None:
        self._publishing = False
        for engine in self.engines.values():
            engine.serve(self._time, version)
        held, self._held = self._held, []
        if held:
            self._submit(held)
        self._happens(events.Published(version))

    def _count_rollout(self) -> None:
        """Rollout runs while a sample of a live group does."""
        running = self.view.counts[SampleState.RUNNING] > 0
        if running and self._rolling_since is None:
            self._rolling_since = self._time
        elif not running and self._rolling_since is not None:
            self._rolled += self._time - self._rolling_since
            self._rolling_since = None
