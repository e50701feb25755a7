"""What a driver makes of engines that don't serve, or die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.interfaces import FleetState, RolloutFleet
from longboat_runtime.problems import SpecProblem

log = structlog.get_logger()

LIMIT_FIELD = "spec.failurePolicy.maxRolloutRestarts"


@dataclass(frozen=True, slots=True)
class EngineDeaths:
    """Engines that died by themselves since `step` was committed, the highest so far."""

    number: int = 0
    step: int = 0

    def counted(self, more: int, step: int) -> EngineDeaths:
        """With `more` deaths, seen while `step` is the last committed one.

        The rule: a new step forgives those before it. Deaths with a pod are not among them: the operator counts these, by the
        same limit.
        """
        return EngineDeaths(more, step) if step > self.step else EngineDeaths(self.number + more, self.step)

    def over(self, limit: int, last: str) -> SpecProblem | None:
        """The end of the job, if they are more than `limit`; `last` says what the last one died of."""
        if self.number <= limit:
            return None
        since = f"since step {self.step} was committed" if self.step else "before the first step was committed"
        message = (
            f"Engines died {self.number} times {since} (failurePolicy.maxRolloutRestarts: {limit}); last: {last}. Cure that, in a new "
            "job that resumes from the claim (checkpoint.resumeFrom)."
        )
        return SpecProblem(Reason.RESTART_LIMIT_EXCEEDED, LIMIT_FIELD, message)


class EngineWatch:
    """Tells of engines that don't serve, while they don't, and ends the job if they die too often.

    `limit` (failurePolicy.maxRolloutRestarts) may be edited while the job runs. `publish_again` is called when none serves because
    the weights can't be fetched: their data may have gone with the trainer that had it, which nobody else would notice while rounds
    wait.
    """

    def __init__(self, job: Job, fleet: RolloutFleet, reporter: Reporter, publish_again: Callable[[], None]) -> None:
        self.limit = job.spec.failure_policy.max_rollout_restarts
        self._fleet, self._reporter, self._publish_again = fleet, reporter, publish_again

    async def run(self) -> None:
        """Looks forever. Raises SpecProblem, also what the fleet fails with."""
        known, deaths = FleetState(), EngineDeaths()
        while True:
            state = await self._fleet.changed(known)
            deaths = deaths.counted(state.deaths - known.deaths, self._reporter.step)
            if problem := deaths.over(self.limit, state.last_death):
                raise problem
            self._tell(state)
            if state.fetches > known.fetches and state.unreached and not state.serving:
                self._publish_again()
            known = state

    def _tell(self, state: FleetState) -> None:
        problems = self._reporter.problems
        refused = "; ".join(why for _, why in sorted(state.refused.items()))
        message = (
            f"Engines that don't serve, as they refused the weights; they get them again, then are restarted: {refused}"
        )
        problems.set(Reason.ENGINE_REFUSED, None, message, bool(state.refused))
        why = "; ".join(why for _, why in sorted({**state.refused, **state.unreached}.items())) or state.last_death
        message = f"No engine serves; rounds wait. {why}".strip()
        nobody = not state.serving and bool(state.refused or state.unreached or state.deaths)
        problems.set(Reason.NO_ENGINES, "spec.rollout.replicas", message, nobody)
        self._reporter.tell()
