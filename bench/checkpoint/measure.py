"""How long a checkpoint holds up training, and how long it is written. Some two minutes, alone on the machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import structlog

from bench.driver.instant_components import Fleet, Rewards, Source
from bench.memory.models import SHAPES, VOCABULARY, build_model
from bench.record import Recorder
from longboat_crds.job import RLJobSpec
from longboat_crds.load import load_job
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.protocol import Manifest
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleRequest, Segment, VersionSpan
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.trainer.group import RayTrainerGroup
from longboat_runtime.trainer.protocol import TrainerGroup, TrainReport, TrainRequest
from longboat_runtime.weights.publication import WeightPublication
from tests.support.publications import Packed

GROUP = 2
PROMPT_TOKENS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=checkpoint`."""
    parser.add_argument("--size", default="70M", choices=SHAPES, help="parameters of the model")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64, help="of a response; two are trained in a step")
    parser.add_argument("--every", type=int, default=6, help="steps from one checkpoint to the next")
    parser.add_argument(
        "--checkpoints", type=int, default=5, help="beside steps; the one of the last step is not counted"
    )
    parser.add_argument("--volume", type=Path, help="where they are written; default: a folder that is deleted")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends one line for each checkpoint but that of the last step, and one for the steps, to `path`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recorder = Recorder(path, **{name: value for name, value in vars(arguments).items() if name != "volume"})
    with tempfile.TemporaryDirectory(prefix="longboat-bench-", dir=arguments.volume) as folder:
        root = Path(folder)
        model = build_model(arguments.size, root / "model")
        times = asyncio.run(_train(job(arguments, model), root / "checkpoints", VOCABULARY[arguments.size]))
    for line in times.checkpoints():
        recorder.write("checkpoint", **line)
        print(", ".join(f"{name} {value:.3g}" for name, value in line.items()), flush=True)
    recorder.write("steps", **times.steps())
    recorder.close()


def job(arguments: argparse.Namespace, model: Path) -> RLJobSpec:
    """Makes the job's spec: a step trains one group of two responses."""
    spec = {
        "runtimeRef": {"name": "bench"},
        "model": {"path": str(model), "dtype": "Float32"},
        "dataset": {"files": {"paths": ["/data.jsonl"]}},
        "algorithm": {"groupSize": GROUP, "importanceCap": 0},
        "rounds": {"steps": arguments.every * arguments.checkpoints + 2, "promptsPerRound": 1},
        "rollout": {"sampling": {"maxTokens": arguments.tokens}},
        "trainer": {"replicas": arguments.ranks, "maxTokensPerBin": arguments.tokens + PROMPT_TOKENS},
        "rewards": [{"name": "main", "function": "rewards:main"}],
        "checkpoint": {"everySteps": arguments.every, "export": False},
    }
    head = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "bench"}}
    return load_job(json.dumps({**head, "spec": spec})).spec


@dataclass
class Times:
    """When steps were `trained` and checkpoints `written`, by step, as beginning and end in monotonic seconds.

    `copied` are the seconds of copies by step, `bytes` the size of the newest checkpoint.
    """

    trained: dict[int, tuple[float, float]] = field(default_factory=dict)
    copied: dict[int, float] = field(default_factory=dict)
    written: dict[int, tuple[float, float]] = field(default_factory=dict)
    bytes: int = 0

    def checkpoints(self) -> list[dict[str, float]]:
        """Returns, for each checkpoint but that of the last step, its step, and the seconds of its copy, write and stall.

        `bytes` are those of the newest checkpoint.

        The stall is the time between steps, from its own step until its write has ended, beyond the median between undisturbed ones.
        """
        usual = median(self._gap(step) for step in self._undisturbed())
        last = max(self.trained)
        return [
            {
                "step": step,
                "bytes": self.bytes,
                "stall": sum(self._gap(at) - usual for at in range(step, last) if self.trained[at][1] < ended),
                "copy": self.copied[step],
                "write": ended - began,
            }
            for step, (began, ended) in sorted(self.written.items())
            if step < last
        ]

    def steps(self) -> dict[str, float]:
        """Computes the median seconds of an undisturbed step, of a step beside a write, and from an undisturbed step to the next one."""
        undisturbed = self._undisturbed()
        beside = [step for step in self.trained if step > 1 and self._writing(*self.trained[step])]
        return {
            "step": median(self._seconds(step) for step in undisturbed),
            "step_beside_write": median(self._seconds(step) for step in beside),
            "between": median(self._gap(step) for step in undisturbed),
        }

    def _undisturbed(self) -> list[int]:
        """Returns the steps without a write during them or before the next one, except the first, which is longer, and the last."""
        last = max(self.trained)
        return [
            step
            for step, (began, _) in self.trained.items()
            if 1 < step < last and not self._writing(began, self.trained[step + 1][0])
        ]

    def _writing(self, began: float, ended: float) -> bool:
        return any(first < ended and began < last for first, last in self.written.values())

    def _seconds(self, step: int) -> float:
        began, ended = self.trained[step]
        return ended - began

    def _gap(self, step: int) -> float:
        """Returns the seconds from the end of `step` to the beginning of the next."""
        return self.trained[step + 1][0] - self.trained[step][1]


class TimedTrainer:
    """Notes when steps are trained and how long copies take, and publishes nothing: there are no engines."""

    def __init__(self, trainer: TrainerGroup, times: Times) -> None:
        self._trainer, self._times, self._step = trainer, times, 0

    async def train(self, request: TrainRequest) -> TrainReport:
        self._step, began = request.step, time.monotonic()
        report = await self._trainer.train(request)
        self._times.trained[request.step] = began, time.monotonic()
        return report

    async def snapshot(self) -> None:
        began = time.monotonic()
        await self._trainer.snapshot()
        self._times.copied[self._step] = time.monotonic() - began

    async def publish(self, version: int) -> WeightPublication:
        return WeightPublication(version, Packed((), ""), (), ())

    async def published(self) -> str:
        return ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class TimedStore(CheckpointStore):
    """Notes how long checkpoints are written: from their beginning until the manifest is in place and older ones are gone."""

    times: Times

    async def save(
        self, step: int, state: Mapping[str, Any], write_model: Callable[[Path], Awaitable[Sequence[FileEntry]]]
    ) -> Manifest:
        began = time.monotonic()
        manifest = await super().save(step, state, write_model)
        self.times.written[step] = began, time.monotonic()
        self.times.bytes = sum(file.stat().st_size for file in manifest.directory.rglob("*"))
        return manifest


class StoringFleet(Fleet):
    """Puts random tokens into the store."""

    def __init__(self, store: StoreClient, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self._store, self._tokens, self._vocabulary = store, tokens, vocabulary

    def tokens(self, request: SampleRequest) -> int:
        return self._tokens

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        await self._store.put([self._sample(request) for request in requests])
        await super().submit(requests)

    def _sample(self, request: SampleRequest) -> GeneratedSample:
        random = np.random.default_rng(request.seed)
        segment = Segment.single_turn(
            np.array(request.prompt_ids, np.int32),
            random.integers(4, self._vocabulary, self._tokens).astype(np.int32),
            random.normal(-10.0, 0.2, self._tokens).astype(np.float32),
            (VersionSpan(self.version, 0, self._tokens),),
        )
        return GeneratedSample(
            id=request.id,
            segments=(segment,),
            finish_reason=FinishReason.STOP,
            text="",
            engine="engine-0",
        )


async def _train(spec: RLJobSpec, root: Path, vocabulary: int) -> Times:
    """Runs the job on its own Ray."""
    import ray

    times = Times()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        resources = {"longboat-store": 1, "longboat-trainer": spec.trainer.ranks}
        ray.init(
            address="local",
            num_cpus=0,
            resources=resources,
            include_dashboard=False,
            object_store_memory=80_000_000,
            namespace="longboat",
            _temp_dir=directory,
        )
        try:
            store = StoreClient(start_store())
            trainer = TimedTrainer(RayTrainerGroup(spec, store), times)
            checkpoints = TimedStore(root, spec.checkpoint.keep, 1)
            checkpoints.times = times
            fleet = StoringFleet(store, spec.rollout.sampling.max_tokens, vocabulary)
            components = Components(store, fleet, Rewards(), trainer, Source(), checkpoints)
            job = Job("bench", spec, root, 1)
            reporter = Reporter(job, LocalBroker(1), Reports([], time.time), StageClock(time.monotonic), time.time)
            driver = Driver(job, components, open_policy(spec), reporter, LocalBroker(1), time.time)
            if await driver.run() is not RunOutcome.DONE:
                raise RuntimeError("the job did not run to its end")
            await trainer.close()
        finally:
            ray.shutdown()
    return times
