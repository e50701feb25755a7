"""One arm on one seed: a whole job, by the production driver, and what its log says."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.driver import instant_components
from bench.elastic import trace
from bench.elastic.arms import DEVICES, Arm
from bench.elastic.fleet import Engines, PacedFleet
from longboat_crds.job import RLJobSpec
from longboat_crds.load import load_job
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.eventlog import end_of, surviving
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rollout.protocol import ReshapePhase
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.rounds.round_kind import RoundKind


def job_spec(arm: Arm, model: Path, steps: int, seed: int, profile: Path | None = None) -> RLJobSpec:
    """Makes the spec of one block's job. `model` is a directory with the config.json of the published model."""
    parallelism: dict[str, Any] = {"mode": str(arm.mode)}
    if profile is not None:
        parallelism["profile"] = str(profile)
    spec = {
        "runtimeRef": {"name": "bench"},
        "model": {"path": str(model), "maxLength": trace.PROMPT_TOKENS + trace.LONGEST},
        "dataset": {"files": {"paths": ["/data.jsonl"]}},
        "algorithm": {"groupSize": trace.GROUP_SIZE},
        "rounds": {
            "policy": "TailBatching",
            "promptOvercommit": trace.PROMPT_OVERCOMMIT,
            "sampleOvercommit": trace.SAMPLE_OVERCOMMIT,
            "steps": steps,
            "promptsPerRound": trace.PROMPTS,
            "seed": seed,
        },
        "rollout": {
            "sampling": {"maxTokens": trace.LONGEST},
            "enginesPerPod": DEVICES // arm.start,
            "tensorParallel": arm.start,
            "parallelism": parallelism,
        },
        "rewards": [{"name": "main", "function": "rewards:main"}],
        "checkpoint": {"everySteps": steps, "export": False},
    }
    head = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "bench-elastic"}}
    return load_job(json.dumps({**head, "spec": spec})).spec


async def run_block(
    spec: RLJobSpec, engines: Engines, lengths: trace.Trace, cost: Mapping[ReshapePhase, float], root: Path
) -> dict[str, Any]:
    """Runs the job into `root`; the block's raw values. Times are of one monotonic clock."""
    job = Job("bench-elastic", spec, root, 1)
    fleet = PacedFleet(engines, spec.rollout.tensor_parallel, lengths, cost)
    await fleet.loads()  # what came before isn't counted
    fleet.forget()
    broker = LocalBroker(1)
    reporter = Reporter(job, broker, Reports([], time.time), StageClock(time.monotonic), time.time)
    components = replace(instant_components.components(root), fleet=fleet)
    began, before = time.monotonic(), cpu_times()
    driver = Driver(job, components, open_policy(spec), reporter, broker, time.monotonic)
    if await driver.run() is not RunOutcome.DONE:
        raise RuntimeError("the block did not run to its end")
    await fleet.idle()
    await fleet.loads()
    idle, total = (after - earlier for after, earlier in zip(cpu_times(), before, strict=True))
    return {
        "wall": time.monotonic() - began,
        "idle": idle / total,
        "punctuality": asdict(fleet.punctuality),
        "void": fleet.punctuality.void,
        **rounds_of([*surviving(root, end_of(root, 1))]),
    }


def rounds_of(log: list[Event]) -> dict[str, list[Any]]:
    """Reads what was measured of each round, in order, from the log of its job.

    `long`: whether it was a long round. `tp`: devices of an engine. `rollout`: seconds from its opening to its end. `seconds`: from its
    opening until the next round opens, including any reshape between, or until the log's last event. `preemptions` and `tokens` are of all
    engines, `kv_usage` is the highest of any, `step_seconds` the mean of their steps. `reshapes` have the round, from 0, before which
    engines changed, their devices from then on, the reason, and seconds.
    """
    rounds: dict[int, dict[str, Any]] = {}
    reshapes: list[list[Any]] = []
    last = 0.0
    for event in log:
        match event.body:
            case events.RoundOpened(round=number, kind=kind):
                rounds[number] = {"long": kind is RoundKind.LONG, "opened": event.time}
            case events.RoundClosed(round=number):
                rounds[number]["rollout"] = event.time - rounds[number]["opened"]
            case measurements.RoundMeasured() as measured:
                rounds[measured.round] |= {
                    "tp": measured.tensor_parallel,
                    "preemptions": measured.preemptions,
                    "tokens": measured.generated_tokens,
                    "kv_usage": measured.kv_usage,
                    "step_seconds": measured.step_seconds,
                }
            case measurements.Reshaped() as reshaped:
                seconds = sum(reshaped.seconds.values())
                reshapes.append([len(rounds), reshaped.tensor_parallel, reshaped.reason, seconds])
        last = event.time
    ordered = [rounds[number] for number in sorted(rounds)]
    opened = [*(round_.pop("opened") for round_ in ordered), last]
    for round_, (begin, end) in zip(ordered, pairwise(opened), strict=True):
        round_["seconds"] = end - begin
    names = ("long", "tp", "rollout", "seconds", "preemptions", "tokens", "kv_usage", "step_seconds")
    return {**{name: [round_[name] for round_ in ordered] for name in names}, "reshapes": reshapes}


def cpu_times() -> tuple[float, float]:
    """Reads the ticks of all CPUs of the machine since it started: those idle or waiting for I/O, and all."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    times = [float(word) for word in first.split()[1:9]]
    return times[3] + times[4], sum(times)
