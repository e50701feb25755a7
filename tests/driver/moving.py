"""Jobs whose responses move: engines are drained, replaced, added and killed at any moment, under every policy.

    python -m tests.driver.moving 10000

runs so many jobs, each with other moments, and prints how many ran under each policy, and what moved.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.exceptions import RayActorError

from longboat_runtime.driver.loop import RunOutcome
from longboat_runtime.interfaces import FleetState, WeightPublication
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rounds import events
from longboat_runtime.samples import (
    FinishReason,
    GeneratedSample,
    SampleId,
    SampleRequest,
    VersionSpan,
    joined,
)
from tests.driver.fakes import FakeStore, Site, digest, make_spec
from tests.driver.runs import history, trained

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

    def __init__(self, name: str, store: FakeStore, chance: random.Random, drawn: dict) -> None:
        self.name, self._store, self._chance, self._drawn = name, store, chance, drawn
        self.version = -1
        self._running: dict[SampleId, SampleRequest] = {}
        self._first: dict[SampleId, GeneratedSample] = {}
        self._draws: dict[SampleId, list[Draw]] = {}
        self.out: list[GeneratedSample] = []
        self._turn = asyncio.Lock()
        self.gone = asyncio.Event()
        for call in ("submit", "abort", "update_weights"):
            setattr(self, call, Method(self, getattr(self, f"_{call}")))

    async def answer(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Raises RayActorError if the engine dies meanwhile."""
        async with self._turn:
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
            answer = await call(*arguments)
        if self.gone.is_set():
            raise RayActorError
        return answer

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
        return lost

    async def _abort(self, ids: Sequence[SampleId]) -> None:
        for sample in ids:
            if sample in self._running:
                self._end(sample, FinishReason.ABORT)

    async def _update_weights(self, publication: WeightPublication, _: float | None) -> float:
        self.version = publication.version
        return 1e-6

    def step(self) -> None:
        """Draws a token."""
        if not self._running:
            return
        sample = self._chance.choice(sorted(self._running))
        request, draws = self._running[sample], self._draws[sample]
        place = request.begun_tokens + len(draws)
        token = digest(request.next_seed, place) % 250
        draws.append(Draw(self.name, token, self.version))
        self._drawn.setdefault((sample, place), []).append(draws[-1])
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
        self.out.append(
            GeneratedSample(
                sample, prompt, tokens, logprobs, spans, reason, str(tokens.sum()), self.name, request.evaluation
            )
        )


def spans_of(draws: Iterable[Draw]) -> tuple[VersionSpan, ...]:
    spans: tuple[VersionSpan, ...] = ()
    for draw in draws:
        spans = joined(spans, (VersionSpan(draw.version, 0, 1),))
    return spans


class Engines:
    """In place of an `EngineKeeper`: the test starts engines, drains them and ends them."""

    def __init__(self, store: FakeStore, chance: random.Random, listener: RayRolloutFleet) -> None:
        self.tensor_parallel = 1
        self.members: dict[str, SimpleNamespace] = {}
        self.publication: WeightPublication | None = None
        self.calibrations: dict[str, float] = {}
        self.state = FleetState()
        self.drawn: dict[tuple[SampleId, int], list[Draw]] = {}
        self._store, self._chance, self._listener = store, chance, listener
        self._news = asyncio.Event()
        self._count = 0
        self._tasks: set[asyncio.Task] = set()

    @property
    def started(self) -> list[SimpleNamespace]:
        return [*self.members.values()]

    def watch(self) -> None: ...

    def tell(self) -> None:
        self._news.set()

    def fail(self, failure: BaseException) -> None:
        raise failure

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def update(self, member: SimpleNamespace, publication: WeightPublication) -> None:
        with suppress(RayActorError):
            await member.actor.update_weights.remote(publication, None)
            if member.name in self.members:
                member.loaded = publication
                self._listener.opened(member)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def start(self) -> None:
        """Another engine, which serves once it has the last publication."""
        name = f"pod-{self._count}-a0/0"
        self._count += 1
        actor = MovingEngine(name, self._store, self._chance, self.drawn)
        member = SimpleNamespace(name=name, actor=actor, loaded=None, parity=0.0, state=None)
        self.members[name] = member
        self._tasks.add(asyncio.create_task(self._run(member)))
        self.tell()

    def end(self, name: str, *, died: bool) -> None:
        """The engine is gone, with all that runs in it."""
        member = self.members.pop(name)
        member.actor.gone.set()
        self._listener.stopped(member, (), "gone")
        self._listener.ended(member, "gone", died=died)
        self.tell()

    async def _run(self, member: SimpleNamespace) -> None:
        if self.publication is not None:
            await self.update(member, self.publication)
        while not member.actor.gone.is_set():
            for _ in range(self._chance.randrange(3)):
                await asyncio.sleep(0)
            if member.actor.gone.is_set():
                return  # the dead write nothing
            member.actor.step()
            if member.actor.out and self._chance.random() < 0.5:
                out, member.actor.out = member.actor.out, []
                await self._store.put(out)
                await asyncio.sleep(0)
                if member.actor.gone.is_set():
                    return
                self._listener.finished_in(member, [sample.summary for sample in out])
            await asyncio.sleep(0)


@dataclass
class Moves:
    """What a run did."""

    drains: int = 0
    moved: int = 0
    kills: int = 0
    lost: int = 0
    by_policy: Counter = field(default_factory=Counter)


class MovingSite(Site):
    """A job on a real fleet, over engines that come and go."""

    def open_fleet(self, order: int) -> Any:
        fleet = RayRolloutFleet(self.spec, self.store)  # type: ignore[arg-type]
        fleet._keeper = self.engines = Engines(self.store, random.Random(order), fleet)  # type: ignore[assignment]
        self.engines.start()
        return fleet


async def disturb(site: MovingSite, chance: random.Random, moves: Moves, *, kill: bool) -> None:
    """Drains, replaces, adds and kills engines forever, at any moment."""
    engines, fleet = site.engines, site.fleet
    while True:
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        names = sorted(engines.members)
        some = chance.sample(names, chance.randint(1, len(names))) if names else []
        if not names or (chance.random() < 0.3 and len(names) < 4):
            engines.start()
        elif kill and chance.random() < 0.2:
            moves.kills += 1
            engines.end(some[0], died=chance.random() < 0.2)
        else:
            moves.drains += 1
            if chance.random() < 0.5:
                engines.start()
            draining = asyncio.create_task(fleet.drain(some))
            while not draining.done():
                if len(engines.members) == len(some) and chance.random() < 0.1:
                    engines.start()
                if kill and chance.random() < 0.02 and some[0] in engines.members:
                    moves.kills += 1
                    engines.end(some[0], died=False)
                await asyncio.sleep(0)
            await draining
            for name in some:
                if name in engines.members:
                    engines.end(name, died=False)


async def run_job(root: Path, policy: str, seed: int, moves: Moves, *, kill: bool) -> MovingSite:
    """Runs a job to its end while its engines are disturbed, and checks what must hold of it."""
    spec = make_spec(steps=STEPS, prompts_per_round=PROMPTS, **POLICIES[policy], sampling={"max_tokens": LONGEST})
    site = MovingSite(root, spec)
    driver = site.driver(seed)
    disturbing = asyncio.create_task(disturb(site, random.Random(seed + 1), moves, kill=kill))
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
        await site.engines.close()
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
    batches = trained(site)
    assert [step for step, _ in batches] == [1, 2, 3]
    prompts = [prompt for _, samples in batches for prompt in {sample.prompt for sample in samples}]
    dropped = {body.prompt for body in bodies if isinstance(body, events.GroupDropped)}
    assert len(prompts) == len(set(prompts))
    assert not dropped & {*prompts}
    drawn = site.engines.drawn
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
    assert not site.store.samples, "nothing is left in the store"


def run_many(count: int, seed: int, *, seconds: float = 60.0) -> Moves:
    """Runs `count` jobs under all policies in turn, every second one with kills; none may take longer than `seconds`."""
    moves = Moves()
    for number in range(count):
        policy = [*POLICIES][number % len(POLICIES)]
        with tempfile.TemporaryDirectory(prefix="moving-") as root:
            job = run_job(Path(root), policy, seed + number, moves, kill=number // len(POLICIES) % 2 == 1)
            try:
                asyncio.run(asyncio.wait_for(job, seconds))
            except BaseException as error:
                error.add_note(
                    f"{policy}, seed {seed + number}, {'with' if number // len(POLICIES) % 2 else 'without'} kills"
                )
                raise
    return moves


if __name__ == "__main__":
    began = time.monotonic()
    done = run_many(int(sys.argv[1]), int(time.time()))
    for name, jobs in done.by_policy.items():
        print(f"{jobs:7} {name}")
    print(
        f"{done.drains} drains, {done.moved} responses moved, {done.kills} engines killed, {done.lost} responses lost with them, in "
        f"{time.monotonic() - began:.0f} s"
    )
