"""The Ray actor of a reward pod: takes responses from the store and asks the graders beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_graders.client import ServerGone
from longboat_graders.messages import FunctionOutcome, GradersCapacity, IsolationInForce
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.grader import Grader
from longboat_runtime.samples import Episode, Response, SampleId, sample_seed
from longboat_runtime.special_tokens import with_special_tokens
from longboat_runtime.store.protocol import SampleStore

log = structlog.get_logger()

# How long requests and answers wait for others on their way between driver and worker, in seconds: one call of Ray costs both about a
# millisecond or two of CPU (measured), several times as much as a short grade.
GATHER_SECONDS = 0.2
# How many cancellations of unknown requests a worker remembers, the newest ones: most had been answered when they were cancelled.
_MOST_CANCELLED = 10_000
# How many differing responses of a group are graded alone too, once for each reward.
_COMPARED = 4


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """Functions (name and timeout in seconds) to be run on stored samples: one, or if `together` all responses to a prompt at once.

    `number` names the request in its answer. `row` is what functions are told about the row that the samples answer; the worker adds the
    responses. `own_seconds` are the limits of functions whose timeouts are learned, by name. With `alone` the graders have nothing else
    to do meanwhile.
    """

    number: int
    samples: tuple[SampleId, ...]
    row: RewardSample
    functions: tuple[tuple[str, float], ...]
    own_seconds: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True)
class GradeAnswer:
    """Outcomes by function name, or the error that there was instead: KeyError if the store has lost the sample."""

    number: int
    outcomes: dict[str, FunctionOutcome] | Exception


@dataclass(frozen=True, slots=True)
class GradeAnswers:
    """Holds what a call brings back; `isolation` says how the grades of each reward are kept apart, by name, if that has changed.

    `capacity` is the graders', as they last told it. `changed` says which reward is no longer what was loaded first, if one isn't: nothing
    is graded there any more.
    """

    answers: list[GradeAnswer]
    isolation: dict[str, IsolationInForce] | None = None
    capacity: GradersCapacity | None = None
    changed: str = ""


def turns_of(episode: Episode) -> list[dict[str, Any]]:
    """Returns the turns of an episode as functions get them: `RewardSample.turns`."""
    return [
        {
            "new": [dict(message) for message in turn.new],
            "message": dict(turn.message),
            "text": turn.text,
            "tokens": turn.tokens,
            "finish_reason": str(turn.finish_reason),
            "seconds": turn.seconds,
            "segment": turn.segment,
            "continues": turn.continues,
        }
        for turn in episode.turns
    ]


class RewardWorker:
    """One in each reward pod. Many requests come at once, and answers are collected; the graders limit how many grades run."""

    def __init__(self, store: SampleStore, socket: Path) -> None:
        self._store = store
        self._graders: Grader = GraderClient(socket, self._changed)
        # Requests whose responses are being fetched, and those that are being graded, by number.
        self._fetching: set[int] = set()
        self._running: dict[int, asyncio.Task[None]] = {}
        # Requests that were cancelled before they came, since calls may overtake each other: they won't begin.
        self._cancelled: dict[int, None] = {}
        # Rewards, by name, whose text has special tokens.
        self._with_special: set[str] = set()
        # Rewards, by name, whose scores of a group have been compared with those of single responses, and comparisons under way.
        self._compared: set[str] = set()
        self._comparing: set[asyncio.Task[None]] = set()
        self._answers: list[GradeAnswer] = []
        self._isolation: dict[str, IsolationInForce] = {}
        # Set while there is something to report (answers, another capacity), and once nothing is being graded any more.
        self._answered, self._idle = asyncio.Event(), asyncio.Event()

    async def load(
        self, rewards: Mapping[int, RewardSpec], isolation: Mapping[str, IsolationInForce]
    ) -> SpecProblem | str | None:
        """Loads these functions, given by their places in `spec.rewards`.

        Returns a SpecProblem if one can't be loaded, a message if the graders can't be reached, else None. `isolation` is what other
        workers have learned about how the grades of a reward must be kept apart.
        """
        self._with_special = {reward.name for reward in rewards.values() if reward.special_tokens}
        reasons = {name: in_force.reason for name, in_force in isolation.items() if in_force.reason}
        try:
            problems = await asyncio.gather(
                *(
                    self._graders.load(reward, f"spec.rewards[{index}]", reasons.get(reward.name))
                    for index, reward in rewards.items()
                )
            )
        except ServerGone as error:
            return str(error)
        return next((problem for problem in problems if problem is not None), None)

    async def capacity(self) -> GradersCapacity | None:
        """Returns the graders' capacity, as they last told it; None before a reward is loaded."""
        return self._graders.capacity

    async def sources(self) -> dict[str, Mapping[str, str]]:
        """Returns what the loaded rewards are made of; see `Grader.sources`."""
        return dict(self._graders.sources)

    async def submit(self, requests: Sequence[GradeRequest]) -> None:
        """Begins these grades, but none that was cancelled before; `answers` returns their outcomes."""
        overtaken = self._cancelled.keys() & {request.number for request in requests}
        requests = [request for request in requests if request.number not in overtaken]
        for number in overtaken:
            del self._cancelled[number]  # a request comes once
        if not requests:
            return
        self._idle.clear()
        self._fetching.update(request.number for request in requests)
        try:
            wanted = [sample for request in requests for sample in request.samples]
            names = {name for request in requests for name, _ in request.functions}
            token_ids = not names.isdisjoint(self._graders.token_ids)
            stored = await self._store.responses(wanted, token_ids=token_ids)
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets it
            self._answer(*(GradeAnswer(request.number, error) for request in self._still_wanted(requests)))
            return
        for request in self._still_wanted(requests):
            if missing := [sample for sample in request.samples if sample not in stored]:
                self._answer(GradeAnswer(request.number, KeyError(*missing)))
                continue
            responses = [stored[sample] for sample in request.samples]
            task = self._running[request.number] = asyncio.create_task(self._run(request, responses))
            task.add_done_callback(partial(self._ended, request.number))

    async def cancel(self, numbers: Sequence[int]) -> None:
        """Ends these grades without an answer, wherever they are, also on their way here; one that has ended already has been answered."""
        for number in numbers:
            if number in self._running:
                self._running[number].cancel()
            elif number in self._fetching:
                self._fetching.remove(number)
            else:
                self._cancelled[number] = None
        while len(self._cancelled) > _MOST_CANCELLED:
            del self._cancelled[next(iter(self._cancelled))]

    async def answers(self, requests: Sequence[GradeRequest] = ()) -> GradeAnswers:
        """Begins these grades, then waits for at least one answer and returns all that there are, each once. One caller at a time.

        It returns without one if another number of grades runs at once.
        """
        await self.submit(requests)
        await self._answered.wait()
        if self._running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), GATHER_SECONDS)
        answers, self._answers = self._answers, []
        self._answered.clear()
        isolation, graders = dict(self._graders.isolation), self._graders
        if isolation == self._isolation:
            return GradeAnswers(answers, capacity=graders.capacity, changed=graders.changed)
        self._isolation = isolation
        return GradeAnswers(answers, isolation, graders.capacity, graders.changed)

    async def grade(self, request: GradeRequest, responses: Sequence[Response]) -> dict[str, FunctionOutcome]:
        """Grades the responses of a request by its functions; returns outcomes by function name."""
        seed = sample_seed("", 0, request.samples[0])
        calls, samples_by_name = [], {}
        for name, seconds in request.functions:
            special, token_ids = name in self._with_special, name in self._graders.token_ids
            samples = samples_by_name[name] = [
                replace(
                    request.row,
                    text=with_special_tokens(response.text, response.special) if special else response.text,
                    finish_reason=str(response.finish_reason),
                    tokens=response.tokens,
                    token_ids=response.token_ids.tolist() if token_ids and response.token_ids is not None else None,
                    turns=None if response.episode is None else turns_of(response.episode),
                )
                for response in responses
            ]
            graded, own = samples if request.together else samples[0], request.own_seconds.get(name)
            calls.append(self._graders.grade(name, graded, seconds, seed, own, alone=request.alone))
        outcomes = {
            name: outcome for (name, _), outcome in zip(request.functions, await asyncio.gather(*calls), strict=True)
        }
        if request.together:
            for name, seconds in request.functions:
                self._compare_soon(name, samples_by_name[name], outcomes[name], seconds, seed)
        return outcomes

    def _compare_soon(
        self, name: str, samples: Sequence[RewardSample], outcome: FunctionOutcome, seconds: float, seed: int
    ) -> None:
        """Compares the first _COMPARED scores that differing responses of one group got together with those that they get alone."""
        places = {sample.text: index for index, sample in enumerate(samples)}
        if name in self._compared or len(places) < _COMPARED or len(outcome.each) != len(samples):
            return
        self._compared.add(name)
        compared = [(samples[index], outcome.each[index]) for index in sorted(places.values())[:_COMPARED]]
        task = asyncio.create_task(self._compare(name, compared, seconds, seed))
        self._comparing.add(task)
        task.add_done_callback(self._comparing.discard)

    async def _compare(
        self, name: str, compared: Sequence[tuple[RewardSample, FunctionOutcome]], seconds: float, seed: int
    ) -> None:
        """Recommends `batch: Sample` if these samples score the same alone as they did together."""
        for sample, outcome in compared:
            alone = await self._graders.grade(name, [sample], seconds, seed)
            if [(own.kind, own.score) for own in alone.each] != [(outcome.kind, outcome.score)]:
                return
        log.info(
            "a reward scores responses the same alone as together: with `batch: Sample` each is graded as soon as it is generated",
            reward=name,
        )

    async def _run(self, request: GradeRequest, responses: Sequence[Response]) -> None:
        try:
            self._answer(GradeAnswer(request.number, await self.grade(request, responses)))
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets it
            self._answer(GradeAnswer(request.number, error))

    def _answer(self, *answers: GradeAnswer) -> None:
        self._answers += answers
        self._answered.set()

    def _changed(self) -> None:
        self._answered.set()

    def _still_wanted(self, requests: Sequence[GradeRequest]) -> list[GradeRequest]:
        """Returns those of fetched requests that nobody has cancelled meanwhile, and takes all of them out of `_fetching`."""
        wanted = [request for request in requests if request.number in self._fetching]
        self._fetching.difference_update(request.number for request in requests)
        return wanted

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]
        if not self._running:
            self._idle.set()
