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
from longboat_runtime.driver.reshapes import Reshapes
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
    """Chooses in a background process while rounds continue. `happened` gets the event of a choice.

    Rounds are simulated with the shapes that `reshapes` plans for each kind, as far as it knows what those engines take; else on engines
    as they are. Its `last_changes` say when the factor may change.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        reporter: Reporter,
        reshapes: Reshapes,
        happened: Callable[[events.Body], None],
    ) -> None:
        self._reshapes = reshapes
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
        """Requests a choice if the step of `record` ended a period after which one is due, or in which shapes have changed."""
        period = self._run_state.lengths.period
        self._prompt_tokens = ceil(record.metrics.get("prompt_length/mean", self._prompt_tokens))
        due = is_due(period) or self._reshapes.last_changes.shapes == period - 1
        if self.active and period != self._period and due:
            self._ended.set()
        self._period = period

    async def run(self) -> None:
        """Chooses a factor whenever a choice is due, forever."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            since = self._run_state.lengths.period
            if (choice := await self._choose()) and self._takes(choice, since):
                log.info("promptOvercommit chosen", factor=choice.factor, reason=choice.reason)
                predicted = {format(factor, "g"): seconds for factor, seconds in choice.predicted.items()}
                self._reporter.overcommitted(choice.reason)
                self._happened(events.OvercommitChosen(choice.factor, predicted, choice.reason))

    def _takes(self, choice: Choice, since: int) -> bool:
        """Whether a choice that began in period `since` counts. A change is noted before its event, which waits behind others."""
        if choice.factor == self._factor:
            return True
        if not self._reshapes.last_changes.overcommit_may_change(since):
            log.info("promptOvercommit stays, since shapes have changed meanwhile", chosen=choice.factor)
            return False
        self._reshapes.overcommitted()
        return True

    @property
    def _factor(self) -> float:
        return self._run_state.view.overcommit or self._spec.rounds.prompt_overcommit or PROMPT_OVERCOMMIT

    async def _choose(self) -> Choice | None:
        """The best factor; None while too little is known."""
        stats = await self._components.fleet.stats()
        window, site = self._run_state.lengths.window(), self._site(stats)
        if not window or site is None:
            return None
        prompts = [history.lengths(self._components.source.domain(history.prompt.row)) for history in window]
        work = partial(
            choose,
            prompts,
            self._job.sampling.max_tokens,
            site,
            partial(open_with, self._spec),
            present=self._factor,
            prompts_per_round=self._spec.rounds.prompts_per_round,
            group_size=resolve(self._spec.algorithm).group_size,
            kv_tokens=min(of.kv_tokens for of in stats) if site.shapes is None else None,
        )
        try:
            return await in_background(work)
        except BackgroundFailed as failed:
            log.warning("no promptOvercommit was chosen; the current one stays", error=str(failed))
            return None

    def _site(self, stats: list[EngineStats]) -> Site | None:
        """The engines, and the share of prompts dropped so far for equal rewards; the rest of a round costs the same.

        None while too little is known of engines. Those of a profile needn't have run, but have to hold the longest responses.
        """
        ledger = self._run_state.ledger
        equal = ledger.dropped[DropReason.ZERO_VARIANCE]
        prompt_tokens, flat = max(1, self._prompt_tokens), equal / max(1, equal + ledger.trained)
        site = partial(Site, max_sequences=self._spec.rollout.max_sequences, prompt_tokens=prompt_tokens, flat=flat)
        shapes = self._reshapes.shapes
        if shapes is not None and shapes.hold(prompt_tokens + self._job.sampling.max_tokens):
            return site(shapes=shapes)
        step_times = merged(of.step_times for of in stats)
        if sum(times.steps for times in step_times.values()) < MIN_STEPS:
            return None
        return site(curve=StepCurve.of(step_times), engines=len(stats))
