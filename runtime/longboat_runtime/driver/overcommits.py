"""`promptOvercommitMode: Auto`: chooses, at the end of some periods, the factor that would make rounds fastest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import ceil

import structlog

from longboat_crds.algorithm import resolve
from longboat_crds.rounds import PROMPT_OVERCOMMIT, OvercommitMode
from longboat_runtime.driver.background_process import BackgroundFailed, in_background
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.run_state import RunState
from longboat_runtime.interfaces import EngineStats
from longboat_runtime.metrics.record import Record
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import WINDOW_PERIODS
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.policies import open_with
from longboat_runtime.simulate.curve import StepCurve, merged
from longboat_runtime.simulate.overcommit import Choice, choose
from longboat_runtime.simulate.site import Site

log = structlog.get_logger()

# If engines have made fewer steps than this in total, their step times are not known well enough.
MIN_STEPS = 100


def is_due(period: int) -> bool:
    """After periods 1, 2, 4, 8, and then whenever the window of lengths is entirely new, every eighth period (pure)."""
    return period > 0 and (period & (period - 1) == 0 if period <= WINDOW_PERIODS else period % WINDOW_PERIODS == 0)


class Overcommits:
    """Chooses in a background process while rounds continue. `happened` gets the event of a choice."""

    def __init__(
        self, job: Job, components: Components, reporter: Reporter, happened: Callable[[events.Body], None]
    ) -> None:
        self._job, self._spec, self._components = job, job.spec, components
        self._reporter, self._happened = reporter, happened
        self._ended = asyncio.Event()
        self._prompt_tokens = 0
        self.active = job.spec.rounds.prompt_overcommit_mode is OvercommitMode.AUTO

    def resume(self, run_state: RunState) -> None:
        """Starts from this state: its past periods have had their choice, or their step times are lost with their engines."""
        self._run_state, self._period = run_state, run_state.lengths.period

    def metrics(self) -> dict[str, float]:
        """The factor of the next short round, if one has been chosen."""
        chosen = self._run_state.view.overcommit if self.active else None
        return {} if chosen is None else {"tail/prompt_overcommit": chosen}

    def consider(self, record: Record) -> None:
        """Requests a choice if the step of `record` ended a period after which one is due."""
        period = self._run_state.lengths.period
        self._prompt_tokens = ceil(record.metrics.get("prompt_length/mean", self._prompt_tokens))
        if self.active and period != self._period and is_due(period):
            self._ended.set()
        self._period = period

    async def run(self) -> None:
        """Chooses a factor whenever a choice is due, forever."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            if choice := await self._choose():
                log.info("promptOvercommit chosen", factor=choice.factor, reason=choice.reason)
                predicted = {format(factor, "g"): seconds for factor, seconds in choice.predicted.items()}
                self._reporter.overcommitted(choice.reason)
                self._happened(events.OvercommitChosen(choice.factor, predicted, choice.reason))

    async def _choose(self) -> Choice | None:
        """The best factor; None while too little is known."""
        stats = await self._components.fleet.stats()
        window = self._run_state.lengths.window()
        if not window or sum(times.steps for of in stats for times in of.step_times.values()) < MIN_STEPS:
            return None
        prompts = [history.lengths(self._components.source.domain(history.prompt.row)) for history in window]
        rounds, chosen = self._spec.rounds, self._run_state.view.overcommit
        work = partial(
            choose,
            prompts,
            self._job.sampling.max_tokens,
            self._site(stats),
            partial(open_with, self._spec),
            present=chosen or rounds.prompt_overcommit or PROMPT_OVERCOMMIT,
            prompts_per_round=rounds.prompts_per_round,
            group_size=resolve(self._spec.algorithm).group_size,
            kv_tokens=min(of.kv_tokens for of in stats),
        )
        try:
            return await in_background(work)
        except BackgroundFailed as failed:
            log.warning("no promptOvercommit was chosen; the current one stays", error=str(failed))
            return None

    def _site(self, stats: list[EngineStats]) -> Site:
        """The engines as they are, and the share of prompts dropped so far for equal rewards; the rest of a round costs the same."""
        ledger = self._run_state.ledger
        equal = ledger.dropped[DropReason.ZERO_VARIANCE]
        return Site(
            StepCurve.of(merged(of.step_times for of in stats)),
            engines=len(stats),
            max_sequences=self._spec.rollout.max_sequences,
            prompt_tokens=self._prompt_tokens,
            flat=equal / max(1, equal + ledger.trained),
        )
