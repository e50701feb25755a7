"""Steps with streaming, with a single chunk, and without, in turn, on engines that stay up. Two CPUs, an hour, alone on the machine."""

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
from bench.rounds.tasks import Task
from bench.stream.tasks import OFF, POLICIES, TASKS, WAYS, spec_of, streamed, task_named

WARM_UP = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=stream`."""
    parser.add_argument("--tasks", nargs="*", default=[*TASKS.values()], type=task_named, help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="blocks of each policy and way")
    parser.add_argument("--steps", type=int, help="optimizer steps of a block, instead of the task's own number")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`; prints how long each block took."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    steps = {task.name: arguments.steps or task.steps for task in arguments.tasks}
    recorder = Recorder(path, tasks=[*steps], seeds=arguments.seeds, steps=steps)
    for task in arguments.tasks:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            asyncio.run(_measure(task, steps[task.name], arguments.seeds, recorder, Path(folder)))
    recorder.close()


async def _measure(task: Task, steps: int, seeds: int, recorder: Recorder, folder: Path) -> None:
    from bench.rounds.block import run_block
    from bench.rounds.components import task_components

    began = time.monotonic()
    task.prepare(folder)
    warm = spec_of(task, POLICIES[0], OFF, folder, steps=WARM_UP, seed=99)
    async with task_components(task, warm, folder) as components:
        await run_block(task, warm, components, folder / "warm-up")
        print(f"{task.name}: ready {time.monotonic() - began:.0f} s", flush=True)
        for seed in range(seeds):
            for policy in POLICIES:
                for way in WAYS:
                    spec = spec_of(task, policy, way, folder, steps=steps, seed=seed)
                    root = folder / f"{policy}-{way}-{seed}"
                    with streamed(way):
                        _, values = await run_block(task, spec, components, root)
                    shutil.rmtree(root)
                    recorder.write(
                        "block", task=task.name, policy=policy, way=way, seed=seed, load=os.getloadavg()[0], **values
                    )
                    step, train = (sum(values[name]) / steps for name in ("step", "train"))
                    print(
                        f"{task.name} {policy} {way} seed {seed}: {step:.2f} s a step, {train:.2f} of them trained after the round; "
                        f"block {values['wall']:.0f} s",
                        flush=True,
                    )
