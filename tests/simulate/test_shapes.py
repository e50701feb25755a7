"""Jobs whose engines have KV caches and change their size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan
from longboat_runtime.rollout.throughput import EngineModel, Profile
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.shapes import FinishedRound, FixedShape, PlannedShapes, ShapePlanner, Shapes
from longboat_runtime.simulate.simulation import SimulatedRun, simulate
from longboat_runtime.simulate.site import Site
from tests.rollout.roofline import roofline
from tests.simulate.test_simulation import AnyPolicy, constant, policies
from tests.support.examples import examples

RESHAPE = {1: 3.0, 2: 5.0}


def model(devices: int, kv_tokens: int) -> EngineModel:
    """Two devices are faster with many tokens in context, and hold more than twice as many."""
    step = 0.02 / devices**0.5
    return EngineModel(kv_tokens, 1e-4, (1, 64), (1, 1000), ((step, 2 * step), (2 * step, 6 * step)))


THROUGHPUT = {1: model(1, 1600), 2: model(2, 4000)}
ROOMY = {1: model(1, 10**6), 2: model(2, 10**6)}


def adaptive() -> PlannedShapes:
    return PlannedShapes(ParallelismPlan(1), Bounds((1, 2), 1))


@dataclass(frozen=True)
class Alternating:
    """Engines of two devices and of one in turn."""

    size: int = 2

    def after_round(self, finished: FinishedRound) -> Alternating:
        del finished
        return Alternating(3 - self.size)


planners = st.sampled_from([FixedShape(1), FixedShape(2), Alternating(), adaptive()])


def site(planner: ShapePlanner, pods: int = 1, **more: object) -> Site:
    shapes = Shapes(THROUGHPUT, planner, 2, pods, RESHAPE)
    return Site(shapes=shapes, prompt_tokens=20, max_sequences=64, **more)  # type: ignore[arg-type]


@settings(max_examples=examples(60))
@given(policies, planners, st.integers(1, 2), st.integers(1, 10), st.integers(0, 100), st.sampled_from([0.0, 0.05]))
def test_nothing_is_lost_under_any_planner(
    policy: AnyPolicy, planner: ShapePlanner, pods: int, steps: int, seed: int, latency: float
) -> None:
    lengths = TwoLevel(100, 0.9, 0.6, 1000, seed)
    where = site(planner, pods, latency=latency, update=1.0, publish=0.3, flat=0.2)
    outcome = simulate(policy, policy.group_size, where, lengths, steps)
    assert [step.step for step in outcome.steps] == [*range(1, steps + 1)]
    if not policy.drop_zero_variance:
        assert {step.trained for step in outcome.steps} == {policy.prompts_per_round * policy.group_size}
    assert sum(step.generated for step in outcome.steps) >= sum(step.kept for step in outcome.steps) > 0
    assert all(step.tensor_parallel in (1, 2) for step in outcome.steps)
    assert simulate(policy, policy.group_size, where, lengths, steps) == outcome, "the same again"


@pytest.mark.parametrize(
    "policy",
    [Synchronous(6, 4), TailBatching(6, 4, 1.25, 1.0), ContinueUnfinished(6, 4, 1.5), BoundedAsync(6, 4, 1)],
    ids=lambda policy: type(policy).__name__,
)
def test_engines_with_room_for_all_are_those_of_a_curve(policy: AnyPolicy) -> None:
    """Except that what comes begins with the next step: at most one step later, each time that something comes."""
    of = {1: EngineModel(10**6, 0.0, (1, 64), (1,), ((0.006,), (0.015,)))}
    shapes = Shapes(of, FixedShape(1), 2)
    rest = {"prompt_tokens": 20, "update": 1.0, "publish": 0.3}
    lengths = TwoLevel(100, 0.9, 0.6, 1000)
    paged = simulate(policy, 4, Site(shapes=shapes, **rest), lengths, 12)  # type: ignore[arg-type]
    curve = Site(StepCurve((1, 64), (0.006, 0.015)), engines=2, **rest)  # type: ignore[arg-type]
    assert paged.seconds_per_sample == pytest.approx(
        simulate(policy, 4, curve, lengths, 12).seconds_per_sample, rel=0.01
    )
    assert paged.preemptions == 0


def test_a_round_of_equal_responses_takes_what_arithmetic_says() -> None:
    """Two engines, each with two prompts of four samples; nothing is preempted."""
    shapes = Shapes(ROOMY, FixedShape(1), 2)
    outcome = simulate(Synchronous(4, 4), 4, Site(shapes=shapes, prompt_tokens=20), constant(100), 2)
    steps = sum(ROOMY[1].step_seconds(8, 8 * (20 + step)) for step in range(100))
    # Of each prompt's 20 tokens its samples share a block, which is computed once.
    assert outcome.rollout_per_round == pytest.approx(steps + 1e-4 * (2 * 20 + 6 * 4), rel=1e-3)


def test_reshapes_cost_what_training_does_not_hide() -> None:
    policy, lengths = TailBatching(6, 4, 1.25, 1.0), TwoLevel(100, 0.9, 0.6, 1000)

    def run(update: float) -> list[float]:
        outcome = simulate(policy, 4, site(Alternating(), update=update), lengths, 40, most_steps=15)
        assert [step.tensor_parallel for step in outcome.steps] == [2, 1] * 7 + [2]
        assert outcome.reshapes >= 14
        return [step.seconds - step.rollout - update for step in outcome.steps]

    assert run(10.0)[1:] == pytest.approx([0.0] * 14, abs=1e-6)
    assert {round(shown, 6) for shown in run(1.0)[1:]} == {3.0 - 1.0, 5.0 - 1.0}


def test_preemptions_raise_tensor_parallelism() -> None:
    policy, lengths = Synchronous(8, 4), TwoLevel(300, 0.5, 0.3, 1200)
    fixed = simulate(policy, 4, site(FixedShape(1)), lengths, 12)
    planned = simulate(policy, 4, site(adaptive()), lengths, 12)
    assert planned.steps[0] == fixed.steps[0]
    assert planned.steps[0].preemptions > 0
    assert {step.tensor_parallel for step in planned.steps} == {1, 2}
    assert planned.preemptions < fixed.preemptions


def test_a_profile_says_what_changes_take_and_predictions_choose_the_faster_shape() -> None:
    """No training hides the change, so the step in which it is made is longer by it."""
    throughput = {1: roofline(1, weight_tokens=20_000), 2: roofline(2), 4: roofline(4)}
    change, bounds = {1: 20.0, 2: 25.0, 4: 30.0}, Bounds((1, 2, 4), 1)
    policy, lengths = TailBatching(16, 8, 1.25, 1.0), TwoLevel(800, 0.6, 0.4, 8000)

    def run(planner: ShapePlanner) -> SimulatedRun:
        shapes = Shapes(throughput, planner, 4, reshape_seconds=change)
        where = Site(shapes=shapes, prompt_tokens=100, max_sequences=64)
        return simulate(policy, 8, where, lengths, 12)

    planned = run(PlannedShapes(ParallelismPlan(1), bounds, Profile(throughput, change)))
    fixed = {size: sum(step.seconds for step in run(FixedShape(size)).steps) for size in bounds.sizes}
    assert planned.reshapes == 1
    assert planned.steps[-1].tensor_parallel == min(fixed, key=lambda size: fixed[size])
    beside = [(step.tensor_parallel, step.seconds - step.rollout) for step in planned.steps]
    changed = next(number for number, (size, _) in enumerate(beside) if size != 1)
    shown = {number: seconds for number, (_, seconds) in enumerate(beside) if seconds > 1e-6}
    assert shown == pytest.approx({changed: change[beside[-1][0]]})


def test_responses_under_way_go_on_in_the_other_pod() -> None:
    """Pod after pod, so that some are moved; no token of them is drawn again."""
    policy, lengths = BoundedAsync(6, 4, 2), TwoLevel(150, 0.9, 0.6, 1000)
    outcome = simulate(policy, 4, site(adaptive(), 2, update=2.0, publish=0.2), lengths, 16)
    assert outcome.reshapes > 0
    assert sum(step.generated for step in outcome.steps) == sum(step.kept for step in outcome.steps)


def test_pods_change_together_unless_rounds_overlap() -> None:
    """Nothing runs between rounds, also where what is unfinished waits for the next one."""
    outcome = simulate(ContinueUnfinished(6, 4, 1.5), 4, site(Alternating(), 2), TwoLevel(150, 0.9, 0.6, 1000), 12)
    shown = {round(step.seconds - step.rollout, 6) for step in outcome.steps}
    assert shown - {0.0} <= {*RESHAPE.values()}
    assert max(shown) > 0


def test_shapes_that_cannot_be_are_refused() -> None:
    shapes = Shapes(THROUGHPUT, FixedShape(1), 2)
    with pytest.raises(ValueError, match="engines of 4; there are models of"):
        replace(shapes, planner=FixedShape(4))
    with pytest.raises(ValueError, match="must be at least 1"):
        replace(shapes, pods=0)
    with pytest.raises(ValueError, match="or shapes"):
        Site(StepCurve((1,), (1.0,)), shapes=shapes)
    with pytest.raises(ValueError, match="prompt_tokens"):
        Site(shapes=shapes)
