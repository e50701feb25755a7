"""A driver decides on shapes what the simulator says that it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from longboat_runtime.rollout.parallelism import ParallelismPlan
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.shapes import FinishedRound, PlannedShapes, Shapes
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site as SimulatedSite
from tests.driver.planned import BOUNDS, CHANGE, PROFILE, TRUE, WRONG, Planner


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

    driver = Planner(tmp_path, monkeypatch, profile)
    await driver.resume()
    changes = 0
    for finished, plan in planner.rounds:
        driver.reshapes.measured(finished.measured, finished.left)
        assert driver.reshapes.snapshot["plan"] == plan.to_snapshot()
        changes += await driver.settled()
    assert changes == outcome.reshapes, "engines change in the same rounds, and to the same sizes"
