"""What the simulator says of an arm: production's policy, router and planner on the roofline's step times and the trace's lengths. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.elastic import trace
from bench.elastic.arms import DEVICES, SIZES, Arm
from bench.elastic.paced import BLOCK_TOKENS
from bench.elastic.setup import CHANGE_SECONDS, engine_models
from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.shapes import FixedShapes, PlannedShapes, ShapePlanner, Shapes
from longboat_runtime.simulate.simulation import SimulatedStep, simulate
from longboat_runtime.simulate.site import Site

_COSTS = dict.fromkeys(SIZES, CHANGE_SECONDS)


def predicted(arm: Arm, lengths: trace.Trace, latency: float = 0.0) -> Sequence[SimulatedStep]:
    """The steps of one block; `latency` passes between driver and engines each way."""
    shapes = Shapes(engine_models(), _planner(arm), DEVICES, reshape_seconds=_COSTS, block_size=BLOCK_TOKENS)
    site = Site(
        shapes=shapes,
        max_sequences=trace.MAX_SEQUENCES,
        max_tokens=trace.LONGEST,
        latency=latency,
        graders=trace.PROMPTS * trace.GROUP_SIZE,
        prompt_tokens=trace.PROMPT_TOKENS,
    )
    policy = TailBatching(
        prompts_per_round=trace.PROMPTS,
        group_size=trace.GROUP_SIZE,
        prompt_overcommit=trace.PROMPT_OVERCOMMIT,
        sample_overcommit=trace.SAMPLE_OVERCOMMIT,
    )
    return simulate(policy, trace.GROUP_SIZE, site, lengths, lengths.rounds).steps


def _planner(arm: Arm) -> ShapePlanner:
    if arm.mode is ParallelismMode.FIXED:
        return FixedShapes.of(arm.start)
    bounds = Bounds(SIZES, arm.start)
    profile = Profile(engine_models(arm), _COSTS) if arm.mode is ParallelismMode.PREDICTIVE else None
    return PlannedShapes(ParallelismPlan.starting(bounds), arm.mode, bounds, profile)
