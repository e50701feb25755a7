"""A driver decides on shapes what the simulator says that it does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver import reshapes as module
from longboat_runtime.driver.reshapes import Reshapes
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan
from longboat_runtime.rollout.protocol import ReshapePhase, ReshapeReport
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.shapes import FinishedRound, PlannedShapes, Shapes
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site as SimulatedSite
from tests.driver.fakes import Site, make_spec
from tests.rollout.roofline import roofline

BOUNDS = Bounds((1, 2, 4), 1)
TRUE = {1: roofline(1, weight_tokens=20_000), 2: roofline(2), 4: roofline(4)}
CHANGE = {1: 20.0, 2: 25.0, 4: 30.0}
# As the engines are; and one that has two devices twice as fast as they are, so that it has to be corrected.
PROFILE = Profile(TRUE, CHANGE)
WRONG = Profile(
    {**TRUE, 2: replace(TRUE[2], seconds=tuple(tuple(s / 2 for s in row) for row in TRUE[2].seconds))}, CHANGE
)


@dataclass(frozen=True)
class Recorded:
    """A planner that notes what rounds showed, and its plan after each."""

    planner: PlannedShapes
    rounds: list[tuple[FinishedRound, ParallelismPlan]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.planner.size

    def after_round(self, finished: FinishedRound) -> Recorded:
        after = self.planner.after_round(finished)
        self.rounds.append((finished, after.plan))
        return replace(self, planner=after)


@pytest.mark.parametrize("profile", [PROFILE, WRONG, None], ids=["right", "wrong", "none"])
async def test_the_same_rounds_give_the_same_plan_in_driver_and_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile | None
) -> None:
    planner = Recorded(PlannedShapes(ParallelismPlan(BOUNDS.start), BOUNDS, profile))
    shapes = Shapes(TRUE, planner, 4, reshape_seconds=CHANGE)
    site = SimulatedSite(shapes=shapes, prompt_tokens=100, max_sequences=64, max_tokens=8000, update=5.0)
    outcome = simulate(TailBatching(16, 8, 1.25, 1.0), 8, site, TwoLevel(1600, 0.6, 0.4, 8000), 30)
    assert outcome.reshapes > 0
    assert len(planner.rounds) == 30

    happened: list[events.Body] = []
    reshapes = driver_reshapes(tmp_path, monkeypatch, profile, happened)
    await reshapes.resume(None)
    changes = 0
    for finished, plan in planner.rounds:
        reshapes.measured(finished.measured, finished.left)
        assert reshapes.snapshot["plan"] == plan.to_snapshot()
        await reshapes.settled()
        for body in happened:
            assert isinstance(body, measurements.Reshaped)
            reshapes.happened(body)
        changes += len(happened)
        happened.clear()
    assert changes == outcome.reshapes, "engines change in the same rounds, and to the same sizes"


def driver_reshapes(
    root: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile | None, happened: list[events.Body]
) -> Reshapes:
    """Those of a job whose pod has four devices, with this profile; its engines take CHANGE to change."""

    async def reshape(size: int, *, one_by_one: bool) -> ReshapeReport:
        assert not one_by_one
        return ReshapeReport(size, {ReshapePhase.START: CHANGE[size]})

    monkeypatch.setattr(module, "bounds_of", lambda job: BOUNDS)
    monkeypatch.setattr(module, "profile_of", lambda job, rollout, bounds: profile)
    site = Site(root, make_spec(sampling={"max_tokens": 8000}))
    parallelism = ParallelismSpec(mode=ParallelismMode.ADAPTIVE, profile="/there" if profile else None)
    more = {"parallelism": parallelism, "max_sequences": 64, "engines_per_pod": 4}
    site.spec = site.spec.model_copy(update={"rollout": site.spec.rollout.model_copy(update=more)})
    driver = site.driver()
    site.trainer.holds, site.fleet.reshape = True, reshape  # type: ignore[method-assign]
    return Reshapes(driver._job, driver._components, site.reporter, happened.append, asyncio.ensure_future)
