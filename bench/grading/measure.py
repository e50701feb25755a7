"""CPU of a grade beyond the reward function's own, in each isolation. A quarter of an hour, alone on the machine.

A job's reward pool, reward worker and graders grade rounds of 256 samples, which finish as in the quickstart's rounds. What a grade costs is
the CPU of the graders, of the worker and of the driver's process, as the kernel counts it. The function's own is that of a loop that calls
it, in one process; a fork's that of the zygote's, with a child that does nothing, and of a loop that forks for every call.
verl isn't among this project's packages: `pip install --no-deps --target DIRECTORY/site-packages verl tensordict==0.10.0 omegaconf hydra-core
codetiming pylatexenc torchdata pyvers`, and `--verl DIRECTORY/site-packages`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from bench.engine_step.processes import cpu_seconds, used
from bench.grading.bare import TASKS
from bench.grading.responses import responses
from bench.record import Recorder
from bench.step.cases import CASES
from bench.step.longboat_step import Setting, job
from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import DEFAULT_POOL
from longboat_graders.result import RewardSample
from longboat_runtime.local.ray import start_ray
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.scheduler import RayRewardScheduler
from longboat_runtime.reward.slots import resource
from longboat_runtime.samples import (
    FinishReason,
    GeneratedSample,
    Grade,
    GradeKind,
    PromptId,
    Row,
    SampleId,
    Segment,
    VersionSpan,
)
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient

ISOLATIONS = ("Auto", "Shared", "PerGrade")
ROUND = 256
# As in the quickstart: how long a round's samples take to finish, and how often those that have are handed over.
ROUND_SECONDS, HANDOVER_SECONDS = 1.0, 0.05
# Whose CPU counts, by what `cpu_seconds` calls them.
PROCESSES = {
    "graders": ("graders' children and zygotes", "graders' server"),
    "worker": ("reward worker",),
    "driver": ("driver",),
}
OBJECT_STORE_BYTES = 200_000_000
_SCORED = (GradeKind.SCORED, GradeKind.WRONG_FORMAT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=grading`."""
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--isolations", nargs="*", default=[*ISOLATIONS], choices=[*ISOLATIONS])
    parser.add_argument("--grades", type=int, default=8 * ROUND, help="grades of a measurement, in rounds of 256")
    parser.add_argument("--processes", type=int, default=2, help="grades that run at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--verl", type=Path, help="directory with verl; its tasks are left out without it")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Measures tasks and isolations in turn. Appends to `path`."""
    settings = {**vars(arguments), "verl": arguments.verl is not None}
    recorder = Recorder(path, **settings)
    tasks = [task for task in arguments.tasks if arguments.verl is not None or not TASKS[task].verl]
    start_ray({"longboat-store": 1, resource(DEFAULT_POOL): arguments.processes}, OBJECT_STORE_BYTES)
    for repeat in range(arguments.repeats):
        for task in tasks:
            samples = list(responses(task, arguments.grades, repeat))
            bare = _bare(task, arguments.grades, repeat, arguments.verl)
            recorder.write("bare", task=task, repeat=repeat, **{k: v for k, v in bare.items() if k != "scores"})
            for isolation in arguments.isolations:
                costs = asyncio.run(_graded(task, isolation, samples, bare["scores"], arguments))
                recorder.write("graded", task=task, repeat=repeat, isolation=isolation, **costs)
                cost = sum(costs[f"{process}_ms"] for process in PROCESSES)
                print(
                    f"{task}, {isolation}: {cost:.3f} ms a grade (function {bare['function_ms']:.3f}, fork {costs['zygote_fork_ms']:.3f}, "
                    f"fork and function {bare['forked_ms']:.3f}), {costs['different']} different scores",
                    flush=True,
                )
    ray.shutdown()
    recorder.close()


def _bare(task: str, grades: int, seed: int, verl: Path | None) -> dict[str, Any]:
    """See `bare`. In a process of its own, without what this one has imported."""
    command = [sys.executable, "-m", "bench.grading.bare", task, str(grades), str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_environment(verl))
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _environment(verl: Path | None) -> dict[str, str]:
    paths = [*sys.path, *([str(verl)] if verl is not None else [])]
    return {**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


async def _graded(
    task: str, isolation: str, samples: Sequence[RewardSample], scores: Sequence[float | None], arguments: Any
) -> dict[str, Any]:
    """Measures what a grade takes, its CPU milliseconds by process, and counts the scores that differ from those of the bare loop."""
    reward = {"name": "reward", "isolation": isolation, "timeoutSeconds": 60, **TASKS[task].reward}
    with tempfile.TemporaryDirectory(prefix="longboat-") as directory:
        socket = Path(directory) / "graders.sock"
        command = [sys.executable, "-m", "longboat_runtime.cli", "graders", "--socket", str(socket)]
        command += ["--processes", str(arguments.processes), "--parent", str(os.getpid())]
        server = subprocess.Popen(command, env=_environment(arguments.verl))  # noqa: ASYNC220 - returns at once
        actor = start_store()
        store, client = StoreClient(actor), GraderClient(socket)
        scheduler = RayRewardScheduler(_job(reward), store, {DEFAULT_POOL: socket})
        try:
            await scheduler.start()
            warm = list(responses(task, ROUND, -1))
            await store.put([_generated(index, sample) for index, sample in enumerate([*samples, *warm])])
            await _grade(scheduler, warm, len(samples))
            before, began = cpu_seconds(os.getpid()), time.monotonic()
            grades = []
            for start in range(0, len(samples), ROUND):
                grades += await _grade(scheduler, samples[start : start + ROUND], start)
            seconds, cost = time.monotonic() - began, used(before, cpu_seconds(os.getpid()))
            state = (await client.state())["rewards"]["reward"]
        finally:
            await client.close()
            await scheduler.close()
            ray.kill(actor)
            server.terminate()
            server.wait()
    in_force = scheduler.isolation["reward"]
    own_scores = [grade.score if grade.kind in _SCORED else None for grade in grades]
    each = 1e3 / len(samples)
    return {
        **{f"{process}_ms": sum(cost.get(name, 0.0) for name in names) * each for process, names in PROCESSES.items()},
        "wall_ms": seconds * each,
        "grades": len(samples),
        "different": sum(a != b for a, b in zip(own_scores, scores, strict=True)),
        "in_force": str(in_force.isolation),
        "reason": in_force.reason,
        "zygote_fork_ms": 1e3 * state["footprint"]["fork"],
        "footprint": state["footprint"],
        "replaced": state["replaced"],
    }


async def _grade(scheduler: RayRewardScheduler, samples: Sequence[RewardSample], first: int) -> list[Grade]:
    """Grades one round, handed over in about equal parts every HANDOVER_SECONDS for ROUND_SECONDS. Returns the grades in order."""
    handovers = round(ROUND_SECONDS / HANDOVER_SECONDS)
    tasks: list[asyncio.Task[Grade]] = []
    for handover in range(1, handovers + 1):
        for index in range(len(tasks), len(samples) * handover // handovers):
            row = _row(first + index, samples[index])
            sample = SampleId(*row.prompt, 0, 0)
            tasks.append(asyncio.create_task(scheduler.grade(sample, row, siblings=[sample])))
        await asyncio.sleep(HANDOVER_SECONDS)
    scheduler.flush()
    return await asyncio.gather(*tasks)


def _row(index: int, sample: RewardSample) -> Row:
    prompt = PromptId(0, index)
    return Row(prompt, sample.prompt, (), sample.domain, sample.ground_truth, sample.columns, sample.messages)


def _generated(index: int, sample: RewardSample) -> GeneratedSample:
    ids, logprobs = np.zeros(sample.tokens, np.int32), np.zeros(sample.tokens, np.float32)
    spans = (VersionSpan(1, 0, sample.tokens),)
    segment = Segment.single_turn(ids, ids, logprobs, spans)
    return GeneratedSample(SampleId(0, index, 0, 0), (segment,), FinishReason.STOP, sample.text, "engine-0")


def _job(reward: Mapping[str, Any]) -> RLJobSpec:
    spec = job(CASES[0], Path("/model"), Path("/rows.jsonl"), 1, 0, Setting())["spec"]
    return RLJobSpec.model_validate({**spec, "rewards": [reward]})
