"""What plays episodes in tests: an actor without Ray, a store in memory, and engines that draw by the seed of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longboat_crds.environments import EnvironmentSpec
from longboat_runtime.episodes.actor import EpisodeActor
from longboat_runtime.episodes.play import EpisodeConfig, EpisodeReport, EpisodeRequest
from longboat_runtime.rollout.turn_router import TurnEngines, TurnLost
from longboat_runtime.samples import SampleRequest
from longboat_runtime.turns import TurnReply, TurnRequest
from tests.driver.fakes import FakeStore
from tests.recorder.world import MODEL, Engine, contexts_of

# A game of so many turns, which is worth how many different replies there were. It writes down how often each row was played.
GAME = """
import asyncio, os, signal

async def guess(task, model):
    client, messages, replies = model.client(), [], []
    for turn in range(task.get("turns", 2)):
        messages.append({"role": "user", "content": f"{task['question']} {turn}"})
        answer = await client.chat.completions.create(model=model.name, messages=messages)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        replies.append(answer.choices[0].message.content)
    return [1.0 / (number + 1) for number in range(len(replies))]

async def idle(task, model):
    return 1.0

async def fail(task, model):
    await guess(task, model)
    raise RuntimeError("the board is broken")

async def die(task, model):
    await guess(task, model)
    os.kill(os.getpid(), signal.SIGKILL)

async def hang(task, model):
    await guess(task, model)
    await asyncio.sleep(3600)

async def ungraded(task, model):
    await guess(task, model)
"""


@dataclass
class StandIn:
    """`TurnEngine` that draws by the seed alone; a turn waits for `may_draw`. It is lost while it `dies`."""

    engine: Engine = field(default_factory=lambda: Engine("qwen3", ("text", "odd")))
    dies: int = 0

    def __post_init__(self) -> None:
        self.may_draw = asyncio.Event()
        self.may_draw.set()
        self.waiting = 0

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        assert begun is None
        self.waiting += 1
        try:
            await self.may_draw.wait()
        finally:
            self.waiting -= 1
        if self.dies:
            self.dies -= 1
            raise TurnLost("it died", died=True)
        return self.engine.draw(request)


def write_game(directory: Path) -> Path:
    path = directory / "game.py"
    path.write_text(GAME)
    path.chmod(0o644)
    return path


def environment(path: Path, function: str, **limits: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate(
        {"name": function, "function": f"{path}:{function}", "pool": "games", "limits": limits}
    )


def config_of(socket: Path, *environments: EnvironmentSpec) -> EpisodeConfig:
    return EpisodeConfig(dict(enumerate(environments)), MODEL, 4000, socket)


class Pod:
    """An actor without Ray, and its reports as they come."""

    def __init__(self, config: EpisodeConfig, engine: StandIn | None = None) -> None:
        self.store, self.engine = FakeStore(), engine or StandIn()
        self.actor = EpisodeActor("pod.0", config, contexts_of("qwen3"), self.store)
        self.reports: list[EpisodeReport] = []

    async def __aenter__(self) -> Pod:
        problem = await self.actor.start()
        assert problem is None, problem
        await self.actor.update(TurnEngines(1, {"e": self.engine}))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.actor.close()

    async def play(self, number: int, request: SampleRequest, environment: str, **task: Any) -> None:
        await self.actor.play([EpisodeRequest(number, request, environment, {"question": "where?", **task})])

    async def until(self, enough: Callable[[list[EpisodeReport]], bool]) -> list[EpisodeReport]:
        """Takes reports until there are enough."""
        while not enough(self.reports):
            self.reports += await self.actor.reports()
        return self.reports

    async def outcome(self, number: int) -> Any:
        """Returns what became of a launch, once it is over."""
        reports = await self.until(lambda all_: any(each.number == number and each.over for each in all_))
        [outcome] = [each.outcome for each in reports if each.number == number and each.outcome is not None]
        return outcome
