"""Two engines alone and two engines in synchronous rounds of the quickstart's job, in turns. Two CPUs, some 15 minutes by default."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from bench.engine_step import alone, processes
from bench.engine_step.timed import Step, TimedActor
from bench.record import Recorder
from bench.rounds.arms import BASELINE
from bench.rounds.tasks import COUNTDOWN
from longboat_crds.job import RLJobSpec

# Responses stay as they are: both arms must have the same lengths in every round.
TASK = replace(COUNTDOWN, learning_rate=1e-12, actor=TimedActor)
# Numbers of sequences that are compared, and those that count as about as many.
BANDS = {1: (1, 1), 8: (7, 9), 32: (28, 36)}
WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=engine_step`."""
    parser.add_argument("--turns", type=int, default=2, help="times that both arms are measured")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a turn")
    parser.add_argument("--profile", action="store_true", help="sample the job's processes (py-spy), which slows them")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recorder = Recorder(path, turns=arguments.turns, rounds=arguments.rounds, profile=arguments.profile)
    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
        TASK.prepare(Path(folder))
        for turn in range(arguments.turns):
            spec = TASK.spec(BASELINE, Path(folder), steps=arguments.rounds, prompts=TASK.prompts, seed=turn)
            steps = alone.steps_alone(spec, _rounds(spec), TASK.engines)
            recorder.write("arm", arm="alone", turn=turn, load=os.getloadavg()[0], bands=bands(steps))
            print(f"alone, turn {turn}: {len(steps)} steps", flush=True)
            steps, values = asyncio.run(_in_job(spec, Path(folder), profile=arguments.profile))
            recorder.write("arm", arm="job", turn=turn, load=os.getloadavg()[0], bands=bands(steps), **values)
            print(f"in a job, turn {turn}: {len(steps)} steps", flush=True)
    recorder.close()


def bands(steps: Sequence[Step]) -> dict[str, list[list[float]]]:
    """Returns the wall and CPU seconds of decode-only steps, by the numbers of sequences that BANDS compares."""
    return {
        str(size): [
            [round(wall, 6), round(cpu, 6)]
            for batch, prompt, wall, cpu in steps
            if least <= batch <= most and not prompt
        ]
        for size, (least, most) in BANDS.items()
    }


def _rounds(spec: RLJobSpec) -> alone.Rounds:
    """Makes the requests of the job's rounds, divided between engines as in the job."""
    from longboat_runtime.data.source import open_prompts, open_source
    from longboat_runtime.driver.job import Job
    from longboat_runtime.rollout.router import Router
    from longboat_runtime.samples import SampleId, SampleRequest, sample_seed

    sampling = Job("bench", spec, Path("unused"), 1).sampling
    source = open_source(spec.dataset, open_prompts(spec))

    def requests() -> list[list[SampleRequest]]:
        ids = [
            SampleId(*prompt, 0, index)
            for prompt in source.draw(spec.rounds.prompts_per_round)
            for index in range(spec.algorithm.group_size)
        ]
        router = Router()
        for engine in range(TASK.engines):
            router.add(str(engine))
        return [
            [
                SampleRequest(i, source.row(i.prompt).token_ids, sample_seed("bench", spec.rounds.seed, i), sampling)
                for i in share
            ]
            for share in router.route(ids).values()
        ]

    return [requests() for _ in range(spec.rounds.steps)]


async def _in_job(spec: RLJobSpec, folder: Path, *, profile: bool) -> tuple[list[Step], dict[str, Any]]:
    """Times the engines' steps in a whole job, after a short one that warms up.

    Returns them with what the job's stages and processes took and, if `profile` is set, in which functions.
    """
    from bench.rounds.block import run_block
    from bench.rounds.components import task_components

    root = folder / "job"
    async with task_components(TASK, spec, folder) as components:
        warm = TASK.spec(BASELINE, folder, steps=WARM_UP, prompts=TASK.prompts, seed=99)
        await run_block(TASK, warm, components, folder / "warm-up")
        engines = [member.actor for member in components.fleet._keeper.members.values()]  # type: ignore[attr-defined]
        for engine in engines:
            await engine.steps.remote()
        before = processes.cpu_seconds(os.getpid())
        names = {pid: name for pid, (name, _) in before.items()}
        sampling = processes.Profile(names) if profile else None
        _, values = await run_block(TASK, spec, components, root)
        functions = sampling.stop() if sampling else {}
        used = processes.used(before, processes.cpu_seconds(os.getpid()))
        steps = [step for engine in engines for step in await engine.steps.remote()]
    for directory in (root, folder / "warm-up"):
        shutil.rmtree(directory)
    stages = {name: values[name] for name in ("wall", "step", "rollout", "update")}
    return steps, {"cpu": used, "functions": functions, **stages}
