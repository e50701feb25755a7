"""CPU of a grade beyond the reward function's own, in each isolation. Ten minutes, alone on the machine.

Grades arrive as in the quickstart's rounds, 256 at a time. Their cost is that of graders and client, both as the kernel counts it. The
function's own is that of a loop that calls it, in one process; a fork's that of the zygote's, with a child that does nothing, and of a loop
that forks for every call.
verl isn't among this project's packages: `pip install --no-deps --target DIRECTORY/site-packages verl tensordict==0.10.0 omegaconf hydra-core
codetiming pylatexenc torchdata pyvers`, and `--verl DIRECTORY/site-packages`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.grading.bare import TASKS
from bench.grading.responses import responses
from bench.record import Recorder
from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.result import FunctionOutcome, RewardSample

ISOLATIONS = ("Auto", "Shared", "PerGrade")
ROUND = 256
_TICK = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `make bench NAME=grading`."""
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--isolations", nargs="*", default=[*ISOLATIONS], choices=[*ISOLATIONS])
    parser.add_argument("--grades", type=int, default=8 * ROUND, help="grades of a measurement, in rounds of 256")
    parser.add_argument("--processes", type=int, default=2, help="grades that run at once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--verl", type=Path, help="directory with verl; its tasks are left out without it")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Tasks and isolations take turns. Appends to `path`."""
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    recorder = Recorder(path, **settings)
    tasks = [task for task in arguments.tasks if arguments.verl is not None or not TASKS[task].verl]
    for repeat in range(arguments.repeats):
        for task in tasks:
            samples = list(responses(task, arguments.grades, repeat))
            bare = _bare(task, arguments.grades, repeat, arguments.verl)
            recorder.write("bare", task=task, repeat=repeat, **{k: v for k, v in bare.items() if k != "scores"})
            for isolation in arguments.isolations:
                costs = asyncio.run(_graded(task, isolation, samples, bare["scores"], arguments))
                recorder.write("graded", task=task, repeat=repeat, isolation=isolation, **costs)
                cost = costs["graders_ms"] + costs["client_ms"]
                print(
                    f"{task}, {isolation}: {cost:.3f} ms a grade (function {bare['function_ms']:.3f}, fork {costs['zygote_fork_ms']:.3f}, "
                    f"fork and function {bare['forked_ms']:.3f}), {costs['different']} different scores",
                    flush=True,
                )
    recorder.close()


def _bare(task: str, grades: int, seed: int, verl: Path | None) -> dict[str, Any]:
    """See `bare`. In a process of its own, which imports only what the function does."""
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
    """Milliseconds of CPU a grade, of the graders' processes and of the client's, and what a grade took of the clock on the wall."""
    with tempfile.TemporaryDirectory(prefix="longboat-") as directory:
        socket = Path(directory) / "graders.sock"
        command = [sys.executable, "-m", "longboat_runtime.cli", "graders", "--socket", str(socket)]
        command += ["--processes", str(arguments.processes), "--parent", str(os.getpid())]
        server = subprocess.Popen(command, env=_environment(arguments.verl))  # noqa: ASYNC220 - returns at once
        try:
            client = GraderClient(socket)
            spec = {"name": "reward", "isolation": isolation, "timeoutSeconds": 60, **TASKS[task].reward}
            problem = await client.load(RewardSpec.model_validate(spec), "spec.rewards[0]")
            if problem is not None:
                raise problem
            seed = random.Random(0).randrange
            warm = responses(task, ROUND, -1)
            await asyncio.gather(*(client.grade("reward", sample, 60.0, seed(2**60)) for sample in warm))
            outcomes: list[FunctionOutcome] = []
            cpu, mine, began = _tree_cpu(server.pid), time.process_time(), time.monotonic()
            for start in range(0, len(samples), ROUND):
                some = samples[start : start + ROUND]
                outcomes += await asyncio.gather(*(client.grade("reward", s, 60.0, seed(2**60)) for s in some))
            seconds = time.monotonic() - began
            mine = time.process_time() - mine
            cpu = _tree_cpu(server.pid) - cpu
            in_force = client.isolation["reward"]
            state = (await client.state())["rewards"]["reward"]
            await client.close()
        finally:
            server.terminate()
            server.wait()
    given = [o.score if o.kind in ("scored", "wrong_format") else None for o in outcomes]
    each = 1e3 / len(samples)
    return {
        "graders_ms": cpu * each,
        "client_ms": mine * each,
        "wall_ms": seconds * each,
        "grades": len(samples),
        "different": sum(a != b for a, b in zip(given, scores, strict=True)),
        "errors": sum(o.kind not in ("scored", "wrong_format", "not_applicable") for o in outcomes),
        "in_force": str(in_force.isolation),
        "reason": in_force.reason,
        "zygote_fork_ms": 1e3 * state["footprint"]["fork"],
        "footprint": state["footprint"],
        "replaced": state["replaced"],
    }


def _tree_cpu(pid: int) -> float:
    """CPU seconds of a process, of its descendants, and of those of them that have ended and been waited for."""
    total, pending = 0.0, [pid]
    while pending:
        process = Path("/proc") / str(pending.pop())
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            children = [task / "children" for task in (process / "task").iterdir()]
            pending += [int(child) for file in children for child in file.read_text().split()]
        except OSError:
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / _TICK
    return total
