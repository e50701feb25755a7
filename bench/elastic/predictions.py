"""Simulates an arm: the production policy, router and planner with the roofline's step times and the trace's lengths. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.elastic import trace
from bench.elastic.arms import DEVICES, SIZES, Arm
from bench.elastic.setup import CHANGE_SECONDS, engine_models
from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.shapes import FixedShape, PlannedShapes, ShapePlanner, Shapes
from longboat_runtime.simulate.simulation import SimulatedStep, simulate
from longboat_runtime.simulate.site import Site

COSTS = dict.fromkeys(SIZES, CHANGE_SECONDS)


def predicted(arm: Arm, lengths: trace.Trace, latency: float = 0.0) -> Sequence[SimulatedStep]:
    """Returns the steps of one block; `latency` passes between driver and engines each way."""
    if arm.mode is ParallelismMode.FIXED:
        return simulated(FixedShape(arm.start), lengths, latency)
    return simulated(adaptive(arm.start, Profile(engine_models(arm), COSTS)), lengths, latency)


def adaptive(start: int, profile: Profile | None) -> PlannedShapes:
    """Returns the production planner, whose engines start with `start` devices."""
    return PlannedShapes(ParallelismPlan(start), Bounds(SIZES, start), profile)


def simulated(planner: ShapePlanner, lengths: trace.Trace, latency: float = 0.0) -> Sequence[SimulatedStep]:
    """Simulates a job whose engine sizes `planner` chooses; returns its steps."""
    shapes = Shapes(engine_models(), planner, DEVICES, reshape_seconds=COSTS)
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
