"""Clusters without Ray for the fleet of environment pods: nodes that tests add and take away, and actors that they script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError

from longboat_crds.problems import SpecProblem
from longboat_runtime.episodes.cluster import EpisodeNode
from longboat_runtime.episodes.play import EpisodeConfig, EpisodeReport, EpisodeRequest
from longboat_runtime.episodes.tasks import Task
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import FinishedSample, LossCause, LostSample, SampleId, SampleRequest, Sampling


def sample_request(row: int = 0, index: int = 0) -> SampleRequest:
    return SampleRequest(SampleId(0, row, 0, index), (1, 2), 100 * row + index, Sampling(200))


class Handle:
    """Stands for Ray's handle of an actor in this process: its calls fail once it is killed."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.dead = actor, asyncio.Event()

    def __getattr__(self, method: str) -> Any:
        return _Method(self, method)


class _Method:
    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._called(arguments))

    async def _called(self, arguments: Sequence[Any]) -> Any:
        call = asyncio.ensure_future(getattr(self._handle.actor, self._name)(*arguments))
        dead = asyncio.ensure_future(self._handle.dead.wait())
        try:
            await asyncio.wait({call, dead}, return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                raise RayActorError
            return call.result()
        finally:
            call.cancel()
            dead.cancel()


@dataclass
class ScriptedActor:
    """Plays nothing by itself: a test ends its episodes. What it is told to stop is over once the test says so."""

    name: str
    problem: SpecProblem | str | None = None
    playing: dict[int, EpisodeRequest] = field(default_factory=dict)
    tables: list[TurnEngines] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reports: asyncio.Queue[EpisodeReport] = asyncio.Queue()

    async def start(self) -> SpecProblem | str | None:
        return self.problem

    async def update(self, table: TurnEngines) -> None:
        self.tables.append(table)

    async def play(self, requests: Sequence[EpisodeRequest]) -> None:
        self.playing |= {request.number: request for request in requests}

    async def stop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self.playing and number not in self.stopped:
                self.stopped.append(number)
                self._reports.put_nowait(EpisodeReport(number, self.playing[number].sample.unstarted, over=False))

    async def reports(self) -> list[EpisodeReport]:
        return [await self._reports.get()]

    async def close(self) -> None: ...

    def nothing_to_report(self) -> bool:
        return self._reports.empty()

    def number(self, request: SampleRequest) -> int:
        return next(number for number, each in self.playing.items() if each.sample.id == request.id)

    def tell(self, number: int, outcome: FinishedSample | LostSample | None, *, over: bool = True) -> None:
        """Reports what became of a launch, and whether it is over."""
        if over:
            del self.playing[number]
        self._reports.put_nowait(EpisodeReport(number, outcome, over))

    def lose(self, number: int, reason: str = "the board is broken", *, held_up: bool = False) -> None:
        request = self.playing[number].sample
        lost = LostSample(request.id, reason, request.evaluation, cause=LossCause.ENVIRONMENT, held_up=held_up)
        self.tell(number, lost)


class FakeCluster:
    """Nodes by name, and the actors that were started there, each made by `make`."""

    def __init__(self, make: Callable[[str, EpisodeConfig], Any]) -> None:
        self.make = make
        self.here: dict[str, EpisodeNode] = {}
        self.actors: dict[str, Any] = {}
        self.handles: dict[str, Handle] = {}
        self.leaving: set[str] = set()
        self.gone: set[str] = set()

    def add(self, pod: str, pool: str = "games", slots: int = 2) -> str:
        node = EpisodeNode(pod, pod, pool, slots)
        self.here[node.name] = node
        return node.name

    async def nodes(self, pools: Collection[str]) -> Mapping[str, EpisodeNode]:
        return {name: node for name, node in self.here.items() if node.pool in pools}

    async def asking(self) -> set[str]:
        return set(self.leaving)

    async def let_go(self, pod: str) -> None:
        self.gone.add(pod)

    def start(self, name: str, node: EpisodeNode, config: EpisodeConfig) -> Handle:
        self.actors[node.pod] = self.make(name, config)
        handle = self.handles[node.pod] = Handle(self.actors[node.pod])
        return handle

    def kill(self, actor: Handle) -> None:
        actor.dead.set()


@dataclass
class Engines:
    """The part of a rollout fleet that says which engines draw turns."""

    table: TurnEngines = field(default_factory=TurnEngines)

    def __post_init__(self) -> None:
        self.news = asyncio.Event()

    def set(self, table: TurnEngines) -> None:
        self.table = table
        self.news.set()

    async def turn_engines(self, previous: TurnEngines) -> TurnEngines:
        while self.table.number == previous.number:
            self.news.clear()
            await self.news.wait()
        return self.table


class AnyTask:
    """Every sample is a game; those of odd rows are played with tools if there is such a pool."""

    def __init__(self, *pools: str) -> None:
        self.pools = pools or ("games",)

    def task_of(self, request: SampleRequest) -> Task:
        return Task(self.pools[request.id.row % len(self.pools)], "guess", {"question": "where?"})
