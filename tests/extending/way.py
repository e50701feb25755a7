"""A sample's way from its row to its loss: one synchronous step, most of it real.

What runs in other processes is replaced as in all tests of the driver. Real are the data source, the driver, ledger and policy, the
reward worker with a function of a user's, and a rank of the trainer with a small random model.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from longboat_crds.job import RLJobSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import FunctionOutcome, OutcomeKind, RewardFunction
from longboat_graders.result import RewardSample
from longboat_graders.zygote import _graded
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.data.source import open_prompts, open_source
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.reward.combine import applicable, combine
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.reward.worker import GradeRequest, RewardWorker
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.samples import (
    FinishReason,
    GeneratedSample,
    Grade,
    Row,
    SampleId,
    SampleRequest,
    TimeLimit,
    VersionSpan,
)
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.protocol import ModelInfo, TrainReport, TrainRequest
from longboat_runtime.trainer.rank import TrainerRank
from tests.driver.fakes import FakeFleet, FakeRewards, FakeStore, FakeTrainer
from tests.extending.trace import Followed, Hop, Trace, counts
from tests.support.tiny_model import build_tiny_model

GROUP_SIZE, MAX_TOKENS = 2, 16
REWARD = "def reward(sample):\n    return float(sample.text[-1])\n"

# The calls at which the sample leaves the process, and what is there in a job.
STANDS = {
    "FakeFleet.submit": "the router, Ray and vLLM in a rollout pod",
    "FakeFleet.finished": "the sample store's acknowledgement, and Ray",
    "Worker.grade": "the pool's choice of a reward pod, and Ray",
    "Graders.grade": "the graders' container: a socket, and a process for each grade",
    "Rank.train": "the trainer pods: Ray, and an actor for each rank",
}


class InOrder(random.Random):
    """Samples finish and are graded in the order of their names, so that the followed one is ahead of the other."""

    def randrange(self, *_: int) -> int:
        return 0


class Engines(FakeFleet):
    """Every response has a text of its own."""

    def _sample(
        self, request: SampleRequest, token: int, spans: tuple[VersionSpan, ...], reason: FinishReason, text: str
    ) -> GeneratedSample:
        return super()._sample(request, token, spans, reason, response(request.id))


class Graders:
    """The job's reward functions, called here."""

    token_ids = ()

    def __init__(self, spec: RLJobSpec) -> None:
        self._score = {
            reward.name: load_scorer(RewardFunction.from_spec(reward), f"spec.rewards[{index}]")
            for index, reward in enumerate(spec.rewards)
        }

    async def grade(
        self,
        reward: str,
        sample: RewardSample,
        seconds: float,
        seed: int,
        own_seconds: float | None = None,
        *,
        alone: bool = False,
    ) -> FunctionOutcome:
        outcome = _graded(self._score[reward], sample)
        return FunctionOutcome(OutcomeKind(outcome["kind"]), outcome["score"], message=outcome["message"])


class Worker(FakeRewards):
    """A reward worker, and the sum of what its functions say."""

    def __init__(self, spec: RLJobSpec, store: FakeStore) -> None:
        super().__init__(store, InOrder())
        self._spec, self._worker = spec, RewardWorker(store, Path())
        self._worker._graders = Graders(spec)

    async def grade(
        self,
        sample: SampleId,
        row: Row,
        urgency: Urgency = Urgency(),  # noqa: B008 - immutable
        limits: Mapping[str, TimeLimit] | None = None,
        *,
        siblings: Sequence[SampleId] = (),
        training: Mapping[str, float] = MappingProxyType({}),
        only: str | None = None,
    ) -> Grade:
        rewards = applicable(self._spec.rewards, row.domain)
        functions = tuple((reward.name, reward.timeout_seconds) for reward in rewards)
        response = (await self.store.responses([sample]))[sample]
        told = RewardSample("", row.text, row.ground_truth, row.domain, row.columns)
        return combine(rewards, await self._worker.grade(GradeRequest(0, (sample,), told, functions), [response]))


class Rank(FakeTrainer):
    """A trainer of one rank. Its weights go nowhere: the engines are fakes."""

    def __init__(self, spec: RLJobSpec, store: FakeStore) -> None:
        super().__init__(store)
        self._spec = spec

    async def load(self) -> ModelInfo:
        self._rank = TrainerRank(self._spec, 0, 1, process_group.serve("127.0.0.1"))
        return self._rank.load()

    async def train(self, request: TrainRequest) -> TrainReport:
        data = {sample.id: sample for sample in await self.store.get([sample.id for sample in request.samples])}
        return await asyncio.to_thread(self._rank.train, request, lambda ids: [data[i] for i in ids])


def followed() -> list[Hop | str]:
    """The way of the first sample that is drawn, and what stands on it for what."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_follow(Path(directory)))


def told(way: Sequence[Hop | str]) -> str:
    """For a page: a line for each run of functions of one file."""
    lines: list[str] = []
    for file, run in groupby(way, key=lambda step: step.file if isinstance(step, Hop) else ""):
        steps = list(run)
        if file:
            names = ", ".join(f"`{step.name}`" for step in steps if isinstance(step, Hop))
            lines.append(f"1. `{file}`: {names}")
        else:
            lines += [f"   * *here stands a fake for {step}*" for step in steps]
    hops, files, entries = counts(way)
    return "\n".join([*lines, "", f"{hops} functions in {files} files; the way enters `driver` {entries} times."])


def response(sample: SampleId) -> str:
    """The text of a response, whose last letter is its reward."""
    return f"answer {sample.index}"


async def _follow(directory: Path) -> list[Hop | str]:
    spec = _spec(directory)
    source, store = open_source(spec.dataset, open_prompts(spec)), FakeStore()
    rows = open_source(spec.dataset, open_prompts(spec))
    [prompt] = rows.draw(1)
    row, sample = rows.row(prompt), SampleId(*prompt, 0, 0)
    assert prompt.row, "the trainer gives its own test samples the name of row 0"
    components = Components(
        store,
        Engines(store, InOrder()),
        Worker(spec, store),
        Rank(spec, store),
        source,
        CheckpointStore(directory / "job", 1, 1),
    )
    job, broker = Job("job", spec, directory / "job", 1), LocalBroker(1)
    clock = asyncio.get_running_loop().time
    reporter = Reporter(job, broker, Reports([], clock), StageClock(clock), clock)
    trace = Trace(Followed(sample, (row.text, response(sample))), "objective", STANDS)
    try:
        with trace.following():
            outcome = await Driver(job, components, open_policy(spec), reporter, broker, clock).run()
    finally:
        process_group.leave()
    assert outcome is RunOutcome.DONE
    return trace.way


def _spec(directory: Path) -> RLJobSpec:
    model = build_tiny_model(directory / "model", hidden=64)
    rows, reward = directory / "train.jsonl", directory / "reward.py"
    rows.write_text("".join(json.dumps({"prompt": f"{i} + {i} =", "answer": 2 * i}) + "\n" for i in range(8)))
    reward.write_text(REWARD)
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "local"},
            "model": {"path": str(model), "dtype": "Float32"},
            "dataset": {"files": {"paths": [str(rows)]}, "columns": {"groundTruth": "answer"}, "shuffleSeed": 1},
            "algorithm": {"groupSize": GROUP_SIZE},
            "rounds": {"steps": 1, "promptsPerRound": 1},
            "rollout": {"sampling": {"maxTokens": MAX_TOKENS}},
            "rewards": [{"name": "main", "function": f"{reward}:reward"}],
            "trainer": {"maxTokensPerBin": 64},
        }
    )
