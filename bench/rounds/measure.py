"""All arms in turn, seed by seed, on engines that stay up for a task. Two CPUs, some 95 minutes by default, alone on the machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

import structlog

from bench.record import Recorder
from bench.rounds.arms import ARMS, BASELINE, LEARNING, arm_named
from bench.rounds.tasks import TASKS, Task, task_named

WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=rounds`."""
    parser.add_argument("--tasks", nargs="*", default=[*TASKS.values()], type=task_named, help=", ".join(TASKS))
    parser.add_argument("--arms", nargs="*", type=arm_named, help=f"instead of the task's own: {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, default=3, help="blocks of each arm")
    parser.add_argument("--steps", type=int, help="optimizer steps of a block, instead of the task's own number")
    parser.add_argument("--prompts", type=int, help="prompts of a round, instead of the task's own number")
    parser.add_argument("--held-out", type=int, default=14, help="answers to each held-out prompt after a block")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`; prints how long each block took."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recorder = Recorder(
        path,
        tasks=[task.name for task in arguments.tasks],
        arms={task.name: [*(arguments.arms or task.arms)] for task in arguments.tasks},
        seeds=arguments.seeds,
        steps={task.name: arguments.steps or task.steps for task in arguments.tasks},
        prompts={task.name: arguments.prompts or task.prompts for task in arguments.tasks},
        held_out=arguments.held_out,
    )
    for task in arguments.tasks:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            asyncio.run(_measure(task, arguments, recorder, Path(folder)))
    recorder.close()


async def _measure(task: Task, arguments: argparse.Namespace, recorder: Recorder, folder: Path) -> None:
    from bench.rounds.block import run_block
    from bench.rounds.components import task_components
    from bench.rounds.held_out import answers

    began = time.monotonic()
    task.prepare(folder)
    prompts = arguments.prompts or task.prompts
    warm = task.spec(BASELINE, folder, steps=WARM_UP, prompts=prompts, seed=99)
    async with task_components(task, warm, folder) as components:
        await run_block(task, warm, components, folder / "warm-up")
        _say(f"{task.name}: ready", began)
        for seed in range(arguments.seeds):
            for arm in arguments.arms or task.arms:
                began = time.monotonic()
                spec = task.spec(arm, folder, steps=arguments.steps or task.steps, prompts=prompts, seed=seed)
                root = folder / f"{arm}-{seed}"
                job, values = await run_block(task, spec, components, root)
                is_examined = task.learns and arm in LEARNING
                held_out = (
                    await answers(components, job, components.evaluation, arguments.held_out) if is_examined else []
                )
                shutil.rmtree(root)
                recorder.write(
                    "block", task=task.name, arm=arm, seed=seed, load=os.getloadavg()[0], held_out=held_out, **values
                )
                mean = sum(values["rollout"]) / len(values["rollout"])
                _say(f"{task.name} {arm} seed {seed}: rollout {mean:.2f} s a round, block", began)


def _say(what: str, began: float) -> None:
    print(f"{what} {time.monotonic() - began:.0f} s", flush=True)
