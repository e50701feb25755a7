"""Jobs whose responses move: pods come, leave by grant and are told to end, engines change shape and are killed, under every policy.

    python -m tests.driver.moving 10000

runs so many jobs, each with other moments, and prints how many ran under each policy, and what happened. All but the engines' computing
is real: driver, fleet, keeper. A job's policy and seed repeat it, as far as no timer intervenes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import structlog
from ray.exceptions import RayActorError

from longboat_crds.job import RLJobSpec
from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_crds.status import LeavingPod, RolloutGrant
from longboat_runtime.driver import shape_plan
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.rollout import keeper, pods
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules
from longboat_runtime.rollout.ray_cluster import RolloutNode
from longboat_runtime.rounds import events, measurements
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    GeneratedSample,
    SampleId,
    SampleRequest,
    Segment,
    VersionSpan,
    joined,
)
from longboat_runtime.weights.publication import WeightPublication
from tests.driver.fakes import FakeStore, Site, digest, make_spec
from tests.driver.runs import history, trained
from tests.support.waiting import DEADLINE_SECONDS

STEPS, PROMPTS, GROUP = 3, 2, 2
EVALUATION: dict[str, Any] = {"evaluation": {"every_steps": 1, "samples_per_prompt": 1}}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "Synchronous": {"policy": "Synchronous"},
    "Synchronous, evaluated": {"policy": "Synchronous", **EVALUATION},
    "TailBatching": {"policy": "TailBatching", "prompt_overcommit": 1.5},
    "TailBatching, racing samples": {"policy": "TailBatching", "prompt_overcommit": 1.5, "sample_overcommit": 1.5},
    "ContinueUnfinished": {"policy": "ContinueUnfinished", "prompt_overcommit": 1.5},
    "BoundedAsync": {"policy": "BoundedAsync", "max_staleness": 1},
    "BoundedAsync, evaluated": {"policy": "BoundedAsync", "max_staleness": 2, **EVALUATION},
}
# No response is longer, and one in so many tokens ends a response.
LONGEST, ENDING = 12, 8


# Devices of a pod, and the sizes that engines may have.
DEVICES, SIZES = 2, (1, 2)
MOST_PODS = 4
# Jobs that a process runs one after the other, and where their files are.
CHUNK, MEMORY = 50, Path("/dev/shm")
SPECS: dict[str, RLJobSpec] = {}


@dataclass(frozen=True, slots=True)
class Draw:
    """A token that an engine drew."""

    engine: str
    token: int
    version: int


class Method:
    """What Ray makes of an actor's method: calls of one caller begin in the order in which they were made."""

    def __init__(self, engine: MovingEngine, call: Callable[..., Any]) -> None:
        self._engine, self._call = engine, call

    def remote(self, *arguments: Any) -> asyncio.Task:
        return asyncio.create_task(self._engine.answer(self._call, arguments))


class MovingEngine:
    """An engine that draws a token of a random sample at a time. What is drawn depends on the request's seed and the place alone."""

    def __init__(self, config: EngineConfig, pod: str, world: World) -> None:
        self.name, self.pod, self._size, self._world = config.name, pod, config.tensor_parallel, world
        self._store, self._chance = world.store, world.chance
        self.version = -1
        self._running: dict[SampleId, SampleRequest] = {}
        self._first: dict[SampleId, GeneratedSample] = {}
        self._draws: dict[SampleId, list[Draw]] = {}
        self._out: list[GeneratedSample] = []
        self._turn = asyncio.Lock()
        self._work = asyncio.Event()
        self.gone = False
        self._fits = self._size == 1 or self._chance.random() < 0.9
        for call in ("start", "submit", "abort", "update_weights", "take_load", "shutdown"):
            setattr(self, call, Method(self, getattr(self, f"_{call}")))
        self.finished = self

    def remote(self) -> asyncio.Task:
        """The call of `finished`, which waits beside all others."""
        return asyncio.create_task(self._finished())

    def die(self) -> None:
        """Its process ends; what it has sent may still arrive."""
        self.gone = True
        self._work.set()
        if self._out and self._chance.random() < 0.5:
            self._world.spawn(self._put_late(self._out))

    async def _put_late(self, samples: list[GeneratedSample]) -> None:
        await self._world.pause(20)
        await self._store.put(samples)

    async def answer(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Raises RayActorError if the engine dies meanwhile."""
        async with self._turn:
            await self._world.pause(4)
            if self.gone:
                raise RayActorError
            answer = await call(*arguments)
        if self.gone:
            raise RayActorError
        return answer

    async def _start(self) -> None:
        if not self._fits:
            self.die()

    async def _submit(self, requests: Sequence[SampleRequest]) -> list[SampleId]:
        lost = []
        for request in requests:
            part = self._store.samples.get(request.id) if request.begun else None
            if request.begun and (part is None or part.spans != request.begun):
                lost.append(request.id)
                continue
            self._running[request.id], self._draws[request.id] = request, []
            if part is not None:
                self._first[request.id] = part
        self._work.set()
        return lost

    async def _abort(self, ids: Sequence[SampleId]) -> None:
        for sample in ids:
            if sample in self._running:
                self._end(sample, FinishReason.ABORT)
        self._work.set()

    async def _update_weights(self, publication: WeightPublication, _: float | None) -> float:
        self.version = publication.version
        return 1e-6

    async def _take_load(self) -> Load:
        """As many preemptions as it takes to have the plan change now and then."""
        return Load(self._size, preemptions=self._chance.choice((0, 0, 10, 100)))

    async def _shutdown(self) -> None: ...

    async def _finished(self) -> list[FinishedSample]:
        """Draws tokens until something has finished, which the store then holds."""
        while not self._out or (self._running and self._chance.random() < 0.5):
            if not self._running and not self.gone:
                self._work.clear()
                await self._work.wait()
            if self.gone:
                raise RayActorError
            if self._running:
                self._step()
            await self._world.pause(3)
        if self.gone:
            raise RayActorError
        out = self._out
        await self._store.put(out)
        await asyncio.sleep(0)
        if self.gone:
            raise RayActorError
        self._out = self._out[len(out) :]
        return [sample.summary for sample in out]

    def _step(self) -> None:
        """Draws a token."""
        sample = self._chance.choice(sorted(self._running))
        request, draws = self._running[sample], self._draws[sample]
        place = request.begun_tokens + len(draws)
        token = digest(request.next_seed, place) % 250
        draws.append(Draw(self.name, token, self.version))
        self._world.drawn.setdefault((sample, place), []).append(draws[-1])
        if token % ENDING == 0 or place + 1 == LONGEST:
            self._end(sample, FinishReason.STOP if place + 1 < LONGEST else FinishReason.LENGTH)

    def _end(self, sample: SampleId, reason: FinishReason) -> None:
        request, draws = self._running.pop(sample), self._draws.pop(sample)
        part = self._first.pop(sample, None)
        tokens = np.array([draw.token for draw in draws], np.int32)
        logprobs = np.array([-draw.version for draw in draws], np.float32)
        spans = spans_of(draws)
        if part is not None:
            tokens, logprobs = np.concatenate([part.token_ids, tokens]), np.concatenate([part.logprobs, logprobs])
            spans = joined(part.spans, spans)
        prompt = np.array(request.prompt_ids, np.int32)
        segment = Segment.single_turn(prompt, tokens, logprobs, spans)
        self._out = [
            *self._out,
            GeneratedSample(sample, (segment,), reason, str(tokens.sum()), self.name, request.evaluation),
        ]


def spans_of(draws: Iterable[Draw]) -> tuple[VersionSpan, ...]:
    spans: tuple[VersionSpan, ...] = ()
    for draw in draws:
        spans = joined(spans, (VersionSpan(draw.version, 0, 1),))
    return spans


class World:
    """In place of a `RayCluster`: pods come and go, and the engines in them live or die, as `disturb` says."""

    def __init__(self, store: FakeStore, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.drawn: dict[tuple[SampleId, int], list[Draw]] = {}
        self.pods: list[str] = []
        self.ending: set[str] = set()
        self.engines: list[MovingEngine] = []
        self._count = 0
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task] = set()

    # What a RayCluster does

    async def nodes(self) -> dict[str, RolloutNode]:
        return {pod: RolloutNode(pod, pod, NodeDevices(DEVICES)) for pod in self.pods}

    async def asking(self) -> set[str]:
        """Once something has changed: a keeper that looks again and again would take most of the time."""
        await self._news.wait()
        self._news.clear()
        return set(self.ending)

    async def let_go(self, pod: str) -> None:
        self.spawn(self._gone_soon(pod))

    def start(self, config: EngineConfig, node: RolloutNode, store: Any) -> MovingEngine:
        engine = MovingEngine(config, node.pod, self)
        engine.gone = node.pod not in self.pods
        self.engines.append(engine)
        return engine

    def kill(self, engine: MovingEngine) -> None:
        if not engine.gone:
            engine.die()

    # What happens to pods

    @property
    def staying(self) -> list[str]:
        return [pod for pod in self.pods if pod not in self.ending]

    def join(self) -> None:
        """Another pod."""
        self.pods.append(f"pod-{self._count}-a0")
        self._count += 1
        self._news.set()

    def end(self, pod: str) -> None:
        """The pod is told to end, and asks to be let go."""
        self.ending.add(pod)
        self._news.set()

    def vanish(self, pod: str) -> None:
        """The pod is gone, with all that runs in it."""
        if pod in self.pods:
            self.pods.remove(pod)
            self.ending.discard(pod)
            for engine in self.engines:
                if engine.pod == pod:
                    self.kill(engine)
            self._news.set()

    async def _gone_soon(self, pod: str) -> None:
        await self.pause(20)
        self.vanish(pod)

    async def pause(self, most: int) -> None:
        """Lets others go first, fewer than `most` times."""
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@dataclass
class Moves:
    """What happened in some runs."""

    moved: int = 0
    given_back: int = 0
    taken_back: int = 0
    drained: int = 0
    ended: int = 0
    reshapes: int = 0
    failed_reshapes: int = 0
    kills: int = 0
    lost: int = 0
    redrawn: int = 0
    by_policy: Counter = field(default_factory=Counter)

    def __iadd__(self, other: Moves) -> Moves:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self


class MovingSite(Site):
    """A job on a real fleet, over pods that come and go."""

    def open_fleet(self, order: int) -> Any:
        self.world = World(self.store, random.Random(order))
        self.world.join()
        return RayRolloutFleet(self.spec, self.store, self.world)  # type: ignore[arg-type]


class Disturbance:
    """Pods are added, given back, taken back, told to end and killed, and engines killed, forever, at any moment."""

    def __init__(self, site: MovingSite, chance: random.Random, moves: Moves, *, kill: bool) -> None:
        self._site, self._world, self._chance, self._moves, self._kill = site, site.world, chance, moves, kill
        self._leaving: list[str] = []

    async def run(self) -> None:
        while True:
            for _ in range(self._chance.randrange(60)):
                await asyncio.sleep(0)
            self._operate()
            self._disturb()

    def _operate(self) -> None:
        """Deletes pods that have been drained, as the operator does, at once or later."""
        status = self._site.broker.status.demand
        drained = (status.rollout.drained if status and status.rollout else None) or ()
        for pod in drained:
            if pod in self._leaving and pod in self._world.staying and self._chance.random() < 0.5:
                self._moves.drained += 1
                self._world.end(pod)
        if gone := [pod for pod in self._leaving if pod not in self._world.pods]:
            self._grant([pod for pod in self._leaving if pod not in gone])

    def _disturb(self) -> None:
        chance, world, what = self._chance, self._world, self._chance.random()
        staying = [pod for pod in world.staying if pod not in self._leaving]
        if not staying or (what < 0.2 and len(world.pods) < MOST_PODS):
            world.join()
        elif what < 0.4:
            named = chance.sample(staying, chance.randint(1, len(staying)))
            self._moves.given_back += len(named)
            self._grant([*self._leaving, *named])
        elif what < 0.5 and self._leaving:
            self._moves.taken_back += 1
            self._grant(chance.sample(self._leaving, len(self._leaving) - 1))
        elif what < 0.6:
            self._moves.ended += 1
            world.end(chance.choice(staying))
        elif what < 0.7 and self._kill:
            self._moves.kills += 1
            world.vanish(chance.choice(world.pods))
        elif what < 0.9 and self._kill and (living := [engine for engine in world.engines if not engine.gone]):
            self._moves.kills += 1
            world.kill(chance.choice(living))

    def _grant(self, leaving: Sequence[str]) -> None:
        self._leaving = [*leaving]
        named = [LeavingPod(pod=pod, deadline="2026-01-01T00:00:00Z") for pod in leaving]
        self._site.broker.grant(RolloutGrant(answers=1, replicas=len(self._world.staying), leaving=named or None))


def spec_of(policy: str) -> RLJobSpec:
    """A small job whose engines may be reshaped."""
    spec = make_spec(steps=STEPS, prompts_per_round=PROMPTS, **POLICIES[policy], sampling={"max_tokens": LONGEST})
    rollout = spec.rollout.model_copy(
        update={"engines_per_pod": DEVICES, "parallelism": ParallelismSpec(mode=ParallelismMode.ADAPTIVE)}
    )
    failures = spec.failure_policy.model_copy(update={"max_rollout_restarts": 1_000_000})
    return spec.model_copy(update={"rollout": rollout, "failure_policy": failures})


@contextmanager
def at_once() -> Iterator[None]:
    """Nothing waits for time or for a thread: all that happens is due to the order in which tasks take their turns.

    Progress isn't reported, which would take a third of the time.
    """

    async def here(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return work(*arguments, **named)

    def at_random(
        plan: ParallelismPlan, body: measurements.RoundMeasured, rules: PlanRules, left: int
    ) -> ParallelismPlan:
        """The plan for any shape, so that engines change in jobs of few rounds."""
        del left
        sizes = [size for size in rules.bounds.sizes if size not in plan.failed]
        return replace(plan, size=sizes[digest(body.work) % len(sizes)])

    with (
        patch.multiple(keeper, WATCH_SECONDS=0, RESTART_SECONDS=0),
        patch.object(pods, "NODE_SECONDS", 0),
        patch.object(shape_plan, "bounds_of", lambda job: Bounds(SIZES, SIZES[0])),
        patch.object(ParallelismPlan, "after_round", at_random),
        patch.object(asyncio, "to_thread", here),
        patch.object(Reporter, "_training", lambda self, fragments: None),
    ):
        yield


async def run_job(root: Path, policy: str, seed: int, moves: Moves, *, kill: bool) -> MovingSite:
    """Runs a job to its end while it is disturbed, and checks what must hold of it."""
    site = MovingSite(root, SPECS.setdefault(policy, spec_of(policy)))
    driver = site.driver(seed)
    disturbing = asyncio.create_task(Disturbance(site, random.Random(seed + 1), moves, kill=kill).run())
    running = asyncio.create_task(driver.run())
    try:
        await asyncio.wait([disturbing, running], return_when=asyncio.FIRST_COMPLETED)
        if disturbing.done():
            disturbing.result()
        assert running.result() is RunOutcome.DONE
    finally:
        for task in (disturbing, running):
            task.cancel()
        await asyncio.gather(disturbing, running, return_exceptions=True)
        await site.fleet.close()
        site.world.close()
    check(site, moves, killed=kill)
    moves.by_policy[policy] += 1
    return site


def check(site: MovingSite, moves: Moves, *, killed: bool) -> None:
    """Every prompt is trained or dropped once, from exactly the tokens that engines drew; without a kill none is drawn twice."""
    bodies = history(site)
    moved = [body for body in bodies if isinstance(body, events.Moved)]
    lost = [body for body in bodies if isinstance(body, events.Lost)]
    moves.moved += len(moved)
    moves.lost += len(lost)
    reshaped = [body for body in bodies if isinstance(body, measurements.Reshaped)]
    moves.reshapes += len(reshaped)
    moves.failed_reshapes += sum(bool(body.failure) for body in reshaped)
    batches = trained(site)
    assert [step for step, _ in batches] == [1, 2, 3]
    prompts = [prompt for _, samples in batches for prompt in {sample.prompt for sample in samples}]
    dropped = {body.prompt for body in bodies if isinstance(body, events.GroupDropped)}
    assert len(prompts) == len(set(prompts))
    assert not dropped & {*prompts}
    drawn = site.world.drawn
    assert killed or not lost, "a move loses nothing"
    assert killed or all(len(draws) == 1 for draws in drawn.values()), "no token is drawn twice"
    spans = {body.sample: body.spans for body in bodies if isinstance(body, events.Generated)}
    for _, samples in batches:
        assert len(samples) == len({sample.prompt for sample in samples}) * GROUP
        for sample in samples:
            data = site.trainer.trained[sample]
            assert spans[sample] == data.spans
            versions = [version for version, start, end in data.spans for _ in range(start, end)]
            for place, (token, version) in enumerate(zip(data.token_ids.tolist(), versions, strict=True)):
                assert data.logprobs[place] == -version, "log-probs are those of the engine that drew the token"
                assert any((draw.token, draw.version) == (token, version) for draw in drawn[sample, place])
            ends = [token % ENDING == 0 for token in data.token_ids.tolist()]
            assert ends.index(True) + 1 == len(ends) if any(ends) else len(ends) == LONGEST, "whole responses"
    # What was drawn behind the end of the final response, by an engine that died, is no part of it.
    lengths = {sample: len(data.token_ids) for sample, data in site.trainer.trained.items()}
    again = sum(len(draws) > 1 for (sample, place), draws in drawn.items() if place < lengths.get(sample, 0))
    records = (site.root / "incarnations" / "1" / "metrics.jsonl").read_text().splitlines()
    redrawn = sum(json.loads(record).get("rollout/redrawn_tokens", 0.0) for record in records)
    moves.redrawn += again
    assert again <= redrawn <= (1e9 if killed else 0), "what is drawn again is counted"
    assert not site.store.samples, "nothing is left in the store"


async def to_its_end(job: Coroutine[Any, Any, None]) -> None:
    """Awaits the job; raises TimeoutError if it hangs."""
    running = asyncio.ensure_future(job)
    await asyncio.wait([running], timeout=DEADLINE_SECONDS)
    if not running.done():
        running.cancel()
        raise TimeoutError(f"the job has not ended after {DEADLINE_SECONDS:g} s")
    await running


def chunk(numbers: range, seed: int) -> Moves:
    """Runs the jobs with these numbers."""
    moves = Moves()
    for number in numbers:
        policy, kill = [*POLICIES][number % len(POLICIES)], number // len(POLICIES) % 2 == 1
        with tempfile.TemporaryDirectory(prefix="moving-", dir=MEMORY if MEMORY.is_dir() else None) as root, at_once():
            job = run_job(Path(root), policy, seed + number, moves, kill=kill)
            try:
                asyncio.run(to_its_end(job))
            except BaseException as error:
                error.add_note(f"{policy}, seed {seed + number}, {'with' if kill else 'without'} kills")
                raise
    return moves


def run_many(count: int, seed: int, *, processes: int = 1) -> Moves:
    """Runs `count` jobs under all policies in turn, every second one with kills."""
    if processes == 1:
        return chunk(range(count), seed)
    moves = Moves()
    numbers = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        for done in pool.map(chunk, numbers, [seed] * len(numbers)):
            moves += done
    return moves


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    done = run_many(int(sys.argv[1]), secrets.randbits(32), processes=len(os.sched_getaffinity(0)))
    for name, jobs in done.by_policy.items():
        print(f"{jobs:7} {name}")
    for one in fields(Moves)[:-1]:
        print(f"{getattr(done, one.name):7} {one.name.replace('_', ' ')}")
