"""Takes turns from a recorder to engines, and again if they are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from longboat_runtime.rollout.trajectory_homes import TrajectoryHomes
from longboat_runtime.rounds.rules import MOST_ENGINE_DEATHS
from longboat_runtime.samples import FinishReason, SampleId
from longboat_runtime.turns import EngineDeaths, TurnReply, TurnRequest

log = logging.getLogger(__name__)

# After how many seconds an engine that lost or refused a turn is tried again if it still is among those that serve. One that died, or that
# is drained, is so only until the driver's news comes; one that couldn't be reached for a moment stays.
RETRY_SECONDS = 5.0


class TurnLost(Exception):
    """An engine doesn't return a turn: it has `died` or can't be reached, takes no turns, or has lost what it drew."""

    def __init__(self, reason: str, *, died: bool = False) -> None:
        super().__init__(reason)
        self.died = died


class TurnEngine(Protocol):
    """Draws turns in one engine."""

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        """Returns the turn; with reason ABORT if it has to continue in another engine. Raises TurnLost. May be cancelled."""


@dataclass(frozen=True, slots=True)
class TurnEngines:
    """The engines that serve turns, by name. Later ones have a larger `number`. An engine that starts again gets another name."""

    number: int = 0
    engines: Mapping[str, TurnEngine] = field(default_factory=dict)


class TurnRouter:
    """`turns.Turns` over all engines, in the recorder's process. The driver says by `update` which engines serve, and sees no data.

    A turn that an engine loses is drawn again by its seed; one that is ended by a drain continues with its tokens. Its caller only waits.
    Each of the job's routers has a `name` of its own.
    """

    def __init__(self, name: str) -> None:
        self._homes = TrajectoryHomes(name)
        self._table = TurnEngines()
        self._news = asyncio.Event()

    def update(self, table: TurnEngines) -> None:
        """Takes note of the engines that serve; an older table than the last is passed over."""
        if table.number > self._table.number:
            self._table = table
            self._homes.open_only(table.engines.keys())
            self._news.set()

    def ended(self, sample: SampleId) -> None:
        """Forgets a sample that has no more turns."""
        self._homes.ended(sample)

    async def turn(self, request: TurnRequest) -> TurnReply:
        """See turns.Turns. Gives up a turn with which `MOST_ENGINE_DEATHS` engines have died.

        An engine that is tried again since the driver's news of its death hasn't come counts once.
        """
        begun: TurnReply | None = None
        died: set[str] = set()
        while True:
            name = await self._home(request.sample)
            engine = self._table.engines[name]
            try:
                reply = await engine.turn(request, begun)
            except TurnLost as lost:
                if lost.died:
                    died.add(name)
                if len(died) >= MOST_ENGINE_DEATHS:
                    turn = f"turn {request.number} of sample {request.sample}"
                    raise EngineDeaths(f"{len(died)} engines have died with {turn}, the last one: {lost}") from lost
                log.warning("turn %d of sample %s is drawn again: %s", request.number, request.sample, lost)
            else:
                if reply.finish_reason is not FinishReason.ABORT:
                    return reply
                begun = reply
            self._close(name, engine)

    async def _home(self, sample: SampleId) -> str:
        """Waits until an engine is open, and returns the sample's."""
        while (name := self._homes.home(sample)) is None:
            self._news.clear()
            await self._news.wait()
        return name

    def _close(self, name: str, engine: TurnEngine) -> None:
        """Sends nothing to an engine for a while, unless a newer table has it."""
        self._homes.close(name)
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._open, name, engine)

    def _open(self, name: str, engine: TurnEngine) -> None:
        if self._table.engines.get(name) is engine:
            self._homes.open(name)
            self._news.set()
