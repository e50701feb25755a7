"""All arms in turn, seed by seed, on engines that stay up. Two CPUs, nearly an hour by default, alone on the machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from bench.elastic import published, trace
from bench.elastic.arms import ARMS, DEVICES, FIXED, SIZES, Arm, arm_named
from bench.elastic.bars import valid
from bench.elastic.block import job_spec, run_block
from bench.elastic.paced import DRIVING, Punctuality, go_first
from bench.elastic.setup import CONTEXT, COST, ROOFLINE, write_profile
from bench.record import Recorder, newest_run
from longboat_crds.job import RLJobSpec
from longboat_crds.rollout import ParallelismMode

# Void blocks are run again while there is time.
LIMIT_SECONDS = 3600.0
WARM_UP = ((12, 1),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=elastic`."""
    parser.add_argument("--arms", nargs="*", type=arm_named, default=[*ARMS], help=", ".join(ARMS))
    parser.add_argument("--seeds", type=int, default=3, help="blocks of each arm")
    parser.add_argument("--cycles", type=int, help="cycles of each phase of the trace, instead of its own number")
    parser.add_argument("--resume", action="store_true", help="add what the newest run lacks, of these arms and seeds")
    parser.add_argument("--no-fit", action="store_true", help="leave out the published cells, which take minutes")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`; prints how long each block took. Raises ValueError if a run of another trace is to be resumed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    phases = tuple((median, arguments.cycles or cycles) for median, cycles in trace.PHASES)
    earlier = newest_run(path) if arguments.resume else []
    if earlier and earlier[0]["settings"]["phases"] != [[*phase] for phase in phases]:
        raise ValueError(f"--resume: the newest run is of another trace, {earlier[0]['settings']['phases']}")
    done = valid([line for line in earlier if line["kind"] == "block"])
    wanted = [(arm, seed) for seed in range(arguments.seeds) for arm in arguments.arms if (arm, seed) not in done]
    recorder = Recorder(path, resumes=bool(earlier), arms=arguments.arms, seeds=arguments.seeds, phases=phases)
    if not earlier and not arguments.no_fit:
        for (kind, size), fitted in published.cells().items():
            recorder.write("fit", round=str(kind), size=size, seconds=fitted.seconds, preemptions=fitted.preemptions)
    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
        asyncio.run(_measure(wanted, phases, recorder, Path(folder)))
    recorder.close()


async def _measure(wanted: Sequence[tuple[str, int]], phases: trace.Phases, recorder: Recorder, folder: Path) -> None:
    """Measures and records blocks of these arms and seeds; void ones are run again while there is time."""
    from bench.elastic.fleet import start_engines
    from bench.elastic.models import write_published, write_tiny

    began = time.monotonic()
    model, tiny = write_published(folder / "published"), write_tiny(folder / "tiny", CONTEXT)
    engines = start_engines(ROOFLINE, tiny, CONTEXT, DEVICES, SIZES)
    _say("engines are up", began)
    go_first(DRIVING)

    async def block(arm: str, lengths: trace.Trace) -> dict[str, Any]:
        root = folder / "block"
        root.mkdir()
        try:
            return await run_block(job_of(ARMS[arm], model, lengths, root), engines, lengths, COST, root)
        finally:
            shutil.rmtree(root)

    try:
        for arm in FIXED:
            await block(arm, trace.Trace(99, WARM_UP))
        waiting, longest = deque(wanted), 0.0
        void: set[tuple[str, int]] = set()
        while waiting:
            arm, seed = waiting.popleft()
            if (arm, seed) in void and time.monotonic() - began + longest > LIMIT_SECONDS:
                continue
            values = await block(arm, trace.Trace(seed, phases))
            recorder.write("block", arm=arm, seed=seed, load=os.getloadavg()[0], **values)
            longest = max(longest, values["wall"])
            punctuality = Punctuality(**values["punctuality"])
            outcome = (
                f"{values['wall']:.1f} s, {punctuality.on_time:.2%} of steps in time, CPUs {values['idle']:.0%} idle"
            )
            _say(f"{arm} seed {seed}: {outcome}{', void' if punctuality.void else ''}; after", began)
            if punctuality.void:
                void.add((arm, seed))
                waiting.append((arm, seed))
    finally:
        for of_size in engines.values():
            for engine in of_size:
                engine.end()


def job_of(arm: Arm, model: Path, lengths: trace.Trace, folder: Path) -> RLJobSpec:
    """Makes the spec of a block's job. Writes the profile into `folder`, unless the arm's size is fixed."""
    if arm.mode is ParallelismMode.FIXED:
        return job_spec(arm, model, lengths.rounds, lengths.seed)
    profile = folder / "profile.json"
    spec = job_spec(arm, model, lengths.rounds, lengths.seed, profile)
    write_profile(profile, arm, spec)
    return spec


def _say(what: str, began: float) -> None:
    print(f"{what} {time.monotonic() - began:.0f} s", flush=True)
