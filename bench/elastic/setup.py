"""The published setup made smaller, so that it runs here: engines, profile, and what a change costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.elastic import trace
from bench.elastic.arms import SIZES, Arm
from bench.elastic.models import PUBLISHED
from bench.elastic.paced import BLOCK_TOKENS
from bench.elastic.published import H800
from longboat_crds.job import RLJobSpec
from longboat_runtime.rollout.engine import engine_config
from longboat_runtime.rollout.profile import ProfiledEngine, ProfileFile, identity
from longboat_runtime.rollout.protocol import ReshapePhase
from longboat_runtime.rollout.throughput import EngineModel

# A sequence here stands for 1.5 of the published setup, a token for 64 tokens, a step for 64 steps; PACE is how many seconds pass here in
# one of theirs, which leaves two CPUs idle three quarters of the time.
SEQUENCES, TOKENS, PACE = 1.5, 64, 0.0085
ROOFLINE = H800.scaled(sequences=SEQUENCES, tokens=TOKENS, pace=PACE)
CONTEXT = trace.PROMPT_TOKENS + trace.LONGEST

# Seconds of a change in the published setup: vLLM takes tens of seconds to start on a GPU. Nothing runs that would have to move.
CHANGE = {ReshapePhase.DRAIN: 0.0, ReshapePhase.END: 2.0, ReshapePhase.START: 20.0, ReshapePhase.WEIGHTS: 3.0}
COST: Mapping[ReshapePhase, float] = {phase: PACE * seconds for phase, seconds in CHANGE.items()}
CHANGE_SECONDS = sum(COST.values())


def engine_models(arm: Arm | None = None) -> dict[int, EngineModel]:
    """Makes the engine model of each size: the right one or, given an arm, that of its profile."""
    models = {size: replace(ROOFLINE.engine_model(size, CONTEXT), block_tokens=BLOCK_TOKENS) for size in SIZES}
    if arm is None:
        return models
    if arm.swapped:
        models[1], models[2] = models[2], models[1]
    return {size: _slower(model, arm.wrong.get(size, 1.0)) for size, model in models.items()}


def _slower(model: EngineModel, factor: float) -> EngineModel:
    seconds = tuple(tuple(factor * value for value in row) for row in model.seconds)
    return replace(model, prefill_seconds=factor * model.prefill_seconds, seconds=seconds)


def write_profile(path: Path, arm: Arm, spec: RLJobSpec) -> None:
    """Writes the profile that the arm's planner gets, of the engines of `spec`."""
    engines = {size: ProfiledEngine.from_model(model, COST) for size, model in engine_models(arm).items()}
    engine = identity(engine_config(spec, "", (0,)), PUBLISHED)
    ProfileFile(model=spec.model.path, engine=engine, engines=engines).write(path)
