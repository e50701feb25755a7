"""A driver decides on shapes what the simulator says that it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from longboat_runtime.driver.shape_plan import ShapePlan
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.rounds.view import View
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.shapes import FinishedRound, PlannedShapes, Shapes
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site as SimulatedSite
from tests.rollout.roofline import roofline
from tests.support.log import logged

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
def test_the_same_rounds_give_the_same_plan_in_driver_and_simulator(profile: Profile | None) -> None:
    planner = Recorded(PlannedShapes(ParallelismPlan(BOUNDS.start), BOUNDS, profile))
    shapes = Shapes(TRUE, planner, 4, reshape_seconds=CHANGE)
    site = SimulatedSite(shapes=shapes, prompt_tokens=100, max_sequences=64, max_tokens=8000, update=5.0)
    outcome = simulate(TailBatching(16, 8, 1.25, 1.0), 8, site, TwoLevel(1600, 0.6, 0.4, 8000), 30)
    assert outcome.reshapes > 0
    assert len(planner.rounds) == 30

    ledger = Ledger(8, 30)
    path = "/profile.json" if profile else None
    driven = ShapePlan(
        BOUNDS, Limits(64, 8000), {"/profile.json": profile} if profile else {}, path, View(ledger), BOUNDS.start
    )
    changes = 0
    for finished, plan in planner.rounds:
        ledger.step = 30 - 1 - finished.left
        driven.fold(logged(finished.measured))
        assert driven.plan == plan
        if driven.rounds_left > 0 and driven.wants_change:
            changes += 1
            driven.fold(logged(measurements.Reshaped(plan.size, plan.reason, {"start": CHANGE[plan.size]})))
    assert changes == outcome.reshapes, "engines change in the same rounds, and to the same sizes"
