"""What engines feel, round by round."""

from __future__ import annotations

import asyncio

from longboat_runtime.interfaces import RolloutFleet
from longboat_runtime.rollout.load import Load, total
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import RoundKind

# How often engines are asked while nothing else asks them, in seconds: what one that dies did since then stays unknown.
POLL_SECONDS = 5.0


class Loads:
    """Asks engines for their loads, and adds them up by round; what lies between two rounds belongs to the one before."""

    def __init__(self, fleet: RolloutFleet) -> None:
        self._fleet = fleet
        self._round: int | None = None
        self._kinds: dict[int, RoundKind] = {}
        self._of_round: dict[int, dict[str, Load]] = {}
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Asks every POLL_SECONDS, forever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self._ask(self._round)

    async def begin(self, number: int, kind: RoundKind) -> None:
        """From now on loads are those of this round."""
        self._kinds[number], self._of_round[number] = kind, {}
        before, self._round = self._round, number
        await self._ask(before)

    async def finish(self, number: int) -> events.RoundMeasured | None:
        """What engines felt in the round, which is over; None if they weren't asked or none answered."""
        if self._round == number:
            await self._ask(number)
        kind, of_round = self._kinds.pop(number, None), self._of_round.pop(number, {})
        if kind is None or not of_round:
            return None
        load = total(of_round.values())
        return events.RoundMeasured(
            number,
            kind,
            load.tensor_parallel,
            len(of_round),
            load.preemptions,
            load.interrupted,
            load.generated_tokens,
            load.running,
            load.waiting,
            load.kv_usage,
            load.step_seconds,
        )

    async def _ask(self, number: int | None) -> None:
        async with self._turn:
            loads = await self._fleet.loads()
        of_round = self._of_round.get(number, {}) if number is not None else {}
        for engine, load in loads.items():
            of_round[engine] = of_round[engine] + load if engine in of_round else load
