"""Responds to engines that don't serve, or die."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.view import View
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()

LIMIT_FIELD = "spec.failurePolicy.maxRolloutRestarts"


@dataclass(frozen=True, slots=True)
class EngineDeaths:
    """Counts engines that have died on their own since `step`, the highest step so far, was committed."""

    number: int = 0
    step: int = 0

    def counted(self, more: int, step: int) -> EngineDeaths:
        """Returns the count after `more` deaths, seen while `step` is the last committed step.

        The rule: a new step forgives earlier deaths. Engines that die with their pod are not counted here: the operator counts
        those, against the same limit.
        """
        return EngineDeaths(more, step) if step > self.step else EngineDeaths(self.number + more, self.step)

    def over(self, limit: int, last: str) -> SpecProblem | None:
        """Returns the problem that ends the job if there are more than `limit` deaths; `last` is the cause of the last one."""
        if self.number <= limit:
            return None
        since = f"since step {self.step} was committed" if self.step else "before the first step was committed"
        message = (
            f"Engines died {self.number} times {since} (failurePolicy.maxRolloutRestarts: {limit}); last: {last}. Fix the cause, in a "
            "new job that resumes from the claim (checkpoint.resumeFrom)."
        )
        return SpecProblem(Reason.RESTART_LIMIT_EXCEEDED, LIMIT_FIELD, message)


class EngineWatch(Observer):
    """Reports engines that refused the weights, and that none serves, for as long as it is so. Ends the job if engines die too often.

    `limit` is failurePolicy.maxRolloutRestarts. Each failed fetch while no engine serves is a measurement, after which the weights are
    published again. Their data may have been lost with the trainer that held it, which nothing else would notice while rounds wait.
    """

    def __init__(self, context: Context) -> None:
        self.limit = context.job.spec.failure_policy.max_rollout_restarts
        self._fleet, self._inbox = context.components.fleet, context.inbox
        self._problems = Problems(context.news)
        self._view: View | None = None

    def resume(self, restored: Restored) -> None:
        self._view = restored.run_state.view

    async def edit(self, spec: RLJobSpec) -> None:
        self.limit = spec.failure_policy.max_rollout_restarts

    def status(self) -> StatusFragment:
        return StatusFragment(problems=self._problems.present)

    async def run(self) -> None:
        """Watches forever. Raises SpecProblem, and whatever the fleet fails with."""
        previous, deaths = FleetState(), EngineDeaths()
        while True:
            state = await self._fleet.changed(previous)
            deaths = deaths.counted(state.deaths - previous.deaths, self._view.step if self._view else 0)
            if problem := deaths.over(self.limit, state.last_death):
                raise problem
            self._report(state)
            if state.fetches > previous.fetches and state.unreached and not state.serving:
                self._inbox.put_nowait(measurements.WeightsUnreachable(min(state.unreached.values())))
            previous = state

    def _report(self, state: FleetState) -> None:
        refused = "; ".join(why for _, why in sorted(state.refused.items()))
        message = f"Engines that don't serve because they refused the weights; they get them again, then are restarted: {refused}"
        self._problems.set(Reason.ENGINE_REFUSED, None, message, bool(state.refused))
        why = "; ".join(why for _, why in sorted({**state.refused, **state.unreached}.items())) or state.last_death
        message = f"No engine serves; rounds wait. {why}".strip()
        nobody = not state.serving and bool(state.refused or state.unreached or state.deaths)
        self._problems.set(Reason.NO_ENGINES, "spec.rollout.replicas", message, nobody)
