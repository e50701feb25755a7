"""Measures the load of engines, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from longboat_runtime.driver.batch import Batch
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.metrics.batch import load_metrics
from longboat_runtime.rollout.load import Load, total
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.rounds.work import RoundWorks
from longboat_runtime.samples import SampleId

# How often engines are asked while nothing else asks them, in seconds: the load of one that dies is unknown from then on.
POLL_SECONDS = 5.0
# How long to wait for stopped responses, and how often to look whether they are back, in seconds.
STOP_SECONDS, STOP_POLL_SECONDS = 1.0, 0.01


class RoundLoads(Observer):
    """Measures what engines feel in each round, beside the training of the round, and has it logged before the round is forgotten."""

    watches = (events.RoundOpened, events.StepStarted)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loads = Loads(context.components.fleet)
        self._measuring: dict[int, asyncio.Task[None]] = {}
        self._metrics: dict[int, dict[str, float]] = {}

    def resume(self, restored: Restored) -> None:
        self._run_state = restored.run_state

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        match entry.body:
            case events.RoundOpened(round=number, kind=kind):
                self._context.background.spawn(self._loads.begin(number, kind))
            case events.StepStarted(step=step, round=number) if number not in self._measuring:
                self._measuring[number] = self._context.background.spawn(self._measure(step, number))

    async def run(self) -> None:
        await self._loads.run()

    async def before_commit(self, round_: int, batch: Batch) -> None:
        await self._measuring.pop(round_)

    async def metrics(self, step: int) -> Mapping[str, float]:
        return self._metrics.pop(step, {})

    async def _measure(self, step: int, number: int) -> None:
        if measured := await self._loads.finish(number, self._run_state.works, self._run_state.view):
            self._context.inbox.put_nowait(measured)
            self._metrics[step] = load_metrics(measured)


class Loads:
    """Asks engines for their loads, and adds them up by round: a load belongs to the newest round, and to none once that is finished."""

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
        """Assigns loads to this round from now on."""
        self._kinds[number], self._of_round[number] = kind, {}
        before, self._round = self._round, number
        await self._ask(before)

    async def finish(self, number: int, works: RoundWorks, view: View) -> measurements.RoundMeasured | None:
        """Returns what engines felt in the round, which is over, and what it asked of them; None if it wasn't begun here or none answered.

        It waits about STOP_SECONDS at most for responses that engines were told to stop: how far they came is part of what was asked.
        What was asked is left out if the sizes of engines differ, or no response has ended.
        """
        if self._round == number:
            await self._ask(number)
        for _ in range(round(STOP_SECONDS / STOP_POLL_SECONDS)):
            if not any(_is_stopping(view, sample) for sample in works.outstanding(number)):
                break
            await asyncio.sleep(STOP_POLL_SECONDS)
        kind, of_round = self._kinds.pop(number, None), self._of_round.pop(number, {})
        if kind is None or not of_round:
            return None
        sizes = {load.tensor_parallel for load in of_round.values()}
        # If engines changed size meanwhile, the round's seconds say nothing about either size.
        work = works.for_round(number) if len(sizes) == 1 else None
        return total(of_round.values()).measured(number, kind, len(of_round), work)

    async def _ask(self, number: int | None) -> None:
        async with self._turn:
            loads = await self._fleet.loads()
        of_round = self._of_round.get(number, {}) if number is not None else {}
        for engine, load in loads.items():
            of_round[engine] = of_round[engine] + load if engine in of_round else load


def _is_stopping(view: View, sample: SampleId) -> bool:
    record = view.sample(sample)
    return record is None or record.state in {SampleState.PAUSED, SampleState.SURPLUS}
