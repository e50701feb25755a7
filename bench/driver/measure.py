"""CPU microseconds per event in the ledger and with its policy, and per sample in the driver's loop. Two minutes, alone on the machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from bench.driver.instant_components import components
from bench.record import Recorder
from longboat_crds.job import RLJobSpec
from longboat_crds.load import load_job
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.loop import Effects, RoundLoop
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan

GROUP = 8
IN_FLIGHT = (128, 1024, 10240)
# Samples of a measurement, so that it takes seconds whatever is in flight; at least three rounds.
SAMPLES = 20_000
POLICIES: dict[str, dict[str, Any]] = {
    "Synchronous": {"policy": "Synchronous"},
    "TailBatching": {"policy": "TailBatching", "promptOvercommit": 1.25},
    "TailBatching-DAPO": {"policy": "TailBatching", "promptOvercommit": 1.25},
    "ContinueUnfinished": {"policy": "ContinueUnfinished", "promptOvercommit": 1.25},
    "BoundedAsync": {"policy": "BoundedAsync", "maxStaleness": 1},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=driver`."""
    parser.add_argument("--in-flight", nargs="*", type=int, default=[*IN_FLIGHT], help="samples of a round's beginning")
    parser.add_argument("--policies", nargs="*", default=[*POLICIES], choices=[*POLICIES])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of a measurement, three rounds at least")
    parser.add_argument("--repeats", type=int, default=3)


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Measures policies and sizes in turn. Appends to `path`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recorder = Recorder(path, **dict(vars(arguments).items()))
    for repeat in range(arguments.repeats):
        for policy in arguments.policies:
            for in_flight in arguments.in_flight:
                steps = max(3, arguments.samples // in_flight)
                spec = job(policy, in_flight, steps)
                values = {**ledger_costs(spec), **loop_costs(spec)}
                recorder.write("driver", policy=policy, in_flight=in_flight, repeat=repeat, steps=steps, **values)
                shown = ", ".join(f"{name} {value:.1f}" for name, value in values.items())
                print(f"{policy}, {in_flight} in flight: {shown}", flush=True)
    recorder.close()


def job(policy: str, in_flight: int, steps: int) -> RLJobSpec:
    """Makes the spec of a job whose first round has about `in_flight` samples in flight."""
    rounds = POLICIES[policy]
    prompts = int(in_flight / GROUP / rounds.get("promptOvercommit", 1.0))
    spec = {
        "runtimeRef": {"name": "bench"},
        "model": {"path": "/model"},
        "dataset": {"files": {"paths": ["/data.jsonl"]}},
        "algorithm": {"groupSize": GROUP, **({"name": "DAPO"} if policy.endswith("DAPO") else {})},
        "rounds": {**rounds, "steps": steps, "promptsPerRound": prompts},
        "rollout": {"sampling": {"maxTokens": 512}},
        "rewards": [{"name": "main", "function": "rewards:main"}],
        "checkpoint": {"everySteps": steps, "export": False},
    }
    head = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "bench"}}
    return load_job(json.dumps({**head, "spec": spec})).spec


class Instant:
    """Everything that is asked for happens at once, in the order it was asked for."""

    def __init__(self, spec: RLJobSpec) -> None:
        self._loop = RoundLoop(open_policy(spec), self, Ledger(GROUP, spec.rounds.steps), 1)
        self.ledger, self.view = self._loop.ledger, self._loop.view
        self.log: list[Event] = []
        self._asked: list[events.Body] = []
        self.outside = 0

    def run(self) -> None:
        self._asked = [events.Started(0)]
        while self._asked:
            requested, self._asked = self._asked, []
            for body in requested:
                self.outside += 1
                self._loop.happened(body)

    def now(self) -> float:
        return 0.0

    def draw(self, count: int, domain: str) -> list[PromptId]:
        return [PromptId(0, row) for row in range(self.view.drawn, self.view.drawn + count)]

    def carry_out(self, event: Event, effects: Effects) -> None:
        self.log.append(event)
        match event.body:
            case events.Launched(prompt=prompt, attempt=attempt, samples=samples):
                self._make(SampleId(*prompt, attempt, index) for index in range(samples))
            case events.Resumed(samples=samples):
                self._make(samples)
            case events.Generated(sample=sample):
                record = self.view.sample(sample)
                if record is not None and record.state is SampleState.GENERATED:
                    self._asked.append(events.Graded(sample, GradeKind.SCORED, float(sample.index % 2), 0.0))
            case events.StepStarted(step=step, round=number):
                kept_ids = sorted(
                    id_ for p in self.view.rounds[number].kept for id_ in self.ledger.groups[p].counted_ids
                )
                self._asked.append(events.StepCommitted(step, step, number, tuple(kept_ids)))
            case events.PublishStarted(version=version):
                self._asked.append(events.Published(version))
        self._asked += [events.Stopped(sample, 1, "engine-0") for sample in effects.stop]
        spans = (VersionSpan(self.view.serving or 0, 0, 1),)
        self._asked += [events.Paused(sample, 1, spans, "engine-0") for sample in effects.pause]

    def _make(self, samples: Iterable[SampleId]) -> None:
        span = (VersionSpan(self.view.serving or 0, 0, 5),)
        self._asked += [events.Generated(sample, 4, 5, FinishReason.STOP, span, "engine-0") for sample in samples]


def ledger_costs(spec: RLJobSpec) -> dict[str, float]:
    """Measures the CPU microseconds of folding an event alone, and of an event from outside with all events that follow from it."""
    instant = Instant(spec)
    began = time.process_time()
    instant.run()
    decided = time.process_time() - began
    ledger = Ledger(GROUP, spec.rounds.steps)
    began = time.process_time()
    for event in instant.log:
        ledger.apply(event)
    folded = time.process_time() - began
    return {"fold_us": 1e6 * folded / len(instant.log), "decide_us": 1e6 * decided / instant.outside}


def loop_costs(spec: RLJobSpec) -> dict[str, float]:
    """Measures the CPU microseconds per trained sample through the driver's whole loop, its log included."""
    with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
        job = Job("bench", spec, Path(folder), 1)
        reporter = Reporter(job, LocalBroker(1), Reports([], time.time), StageClock(time.monotonic), time.time)
        driver = Driver(job, components(job.root), open_policy(spec), reporter, LocalBroker(1), time.time)
        began = time.process_time()
        if asyncio.run(driver.run()) is not RunOutcome.DONE:
            raise RuntimeError("the job did not run to its end")
        seconds = time.process_time() - began
    return {"loop_us": 1e6 * seconds / (spec.rounds.steps * job.full_batch)}
