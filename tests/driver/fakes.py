"""Components in memory: deterministic engines, graders and a trainer, with failures on request."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from longboat_crds.checkpoint import ResumeFrom
from longboat_crds.job import RLJobSpec
from longboat_crds.status import RewardGrant, RolloutGrant
from longboat_graders.messages import IsolationInForce
from longboat_runtime.checkpoint.digests import Digests
from longboat_runtime.checkpoint.files import read
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.driver.assembly import AdoptingStore
from longboat_runtime.driver.broker import LocalBroker
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.loop import Driver
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.observers import OBSERVERS
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.shape_plan import ShapePlan
from longboat_runtime.driver.stages import StageClock
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.driver.watchdog import samples_line
from longboat_runtime.episodes.protocol import EpisodePods
from longboat_runtime.metrics.record import JsonLines
from longboat_runtime.metrics.reports import Reports
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rollout.protocol import FleetState, PublicationReport, ReshapePhase, ReshapeReport
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.view import View
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.sample_files.files import write
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    GeneratedSample,
    Grade,
    GradeKind,
    GradeTime,
    LostSample,
    PromptId,
    Response,
    Row,
    SampleId,
    SampleRequest,
    Segment,
    StartedSample,
    TimeLimit,
    VersionSpan,
    joined,
)
from longboat_runtime.trainer.errors import NotStreamed, TrainerLost
from longboat_runtime.trainer.protocol import ChunkRequest, ModelInfo, TrainReport, TrainRequest
from longboat_runtime.weights.publication import WeightPublication
from tests.support.checkpoints import described
from tests.support.publications import Packed, PackedSource


class Crash(Exception):
    """The error that ends a driver in these tests."""


def digest(*parts: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


class FakeStore:
    def __init__(self) -> None:
        self.samples: dict[SampleId, GeneratedSample] = {}
        self.refused: set[str] = set()

    async def put(self, samples: Sequence[GeneratedSample]) -> None:
        for sample in samples:
            finished = sample.id in self.samples and self.samples[sample.id].finish_reason is not FinishReason.ABORT
            if not finished and sample.engine not in self.refused:
                self.samples[sample.id] = sample

    async def refuse(self, engine: str) -> None:
        self.refused.add(engine)

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        missing = [i for i in ids if i not in self.samples]
        if missing:
            raise KeyError(*missing)
        return [self.samples[i] for i in ids]

    async def responses(self, ids: Sequence[SampleId], *, token_ids: bool = False) -> dict[SampleId, Response]:
        return {i: self.samples[i].response for i in ids if i in self.samples}

    async def delete(self, ids: Sequence[SampleId]) -> None:
        for i in ids:
            self.samples.pop(i, None)

    async def held_ids(self) -> list[SampleId]:
        return list(self.samples)


@dataclass
class FakeFleet:
    """A sample's tokens are a function of its seed and the weights. `shuffle` determines the order in which samples finish.

    The log-prob of a token is minus the weight version that drew it.
    """

    store: FakeStore
    shuffle: random.Random = field(default_factory=lambda: random.Random(0))
    lose: Counter = field(default_factory=Counter)
    hang: set = field(default_factory=set)
    weights: str = ""
    version: int = -1
    requests: list[SampleRequest] = field(default_factory=list)
    aborted: list[SampleId] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    shortest_first: bool = False
    cut_at: int = 0
    likely: dict[SampleId, int] = field(default_factory=dict)
    begun: dict[SampleId, GeneratedSample | None] = field(default_factory=dict)
    calibrations: dict[str, float] = field(default_factory=dict)
    kill: set = field(default_factory=set)
    state: FleetState = field(default_factory=FleetState)
    load: dict[str, Load] = field(default_factory=dict)
    asked_for_loads: int = 0
    tensor_parallel: int = 1
    unfit: set[int] = field(default_factory=set)
    reshaped: list[tuple[int, bool]] = field(default_factory=list)
    pod_loads: dict[str, PodLoad] = field(default_factory=dict)
    released: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.news = asyncio.Event()
        self.done: asyncio.Queue[FinishedSample | LostSample | StartedSample] = asyncio.Queue()
        self.running: dict[SampleId, asyncio.Task] = {}

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        assert self.version >= 0, "nothing was published"
        for request in requests:
            self.requests.append(request)
            self.begun[request.id] = await self._part(request)
            self.running[request.id] = asyncio.create_task(self._make(request))

    async def _part(self, request: SampleRequest) -> GeneratedSample | None:
        if not request.begun:
            return None
        (part,) = await self.store.get([request.id])
        assert part.spans == request.begun
        return part

    def _sample(
        self, request: SampleRequest, token: int, spans: tuple[VersionSpan, ...], reason: FinishReason, text: str
    ) -> GeneratedSample:
        """The sample with new tokens after those that it had."""
        part = self.begun[request.id]
        count = spans[-1].end if spans else 0
        tokens, logprobs = np.full(count, token, np.int32), np.zeros(count, np.float32)
        for span in spans:
            logprobs[span.start : span.end] = -span.version
        if part is not None:
            tokens, logprobs = np.concatenate([part.token_ids, tokens]), np.concatenate([part.logprobs, logprobs])
            spans = joined(part.spans, spans)
        prompt = np.array(request.prompt_ids, np.int32)
        segment = Segment.single_turn(prompt, tokens, logprobs, spans)
        return GeneratedSample(request.id, (segment,), reason, text, "engine-0", request.evaluation)

    async def _make(self, request: SampleRequest) -> None:
        first = self.version, self.weights
        value = digest(request.seed, request.prompt_ids, first[1], self.weights)
        self.likely[request.id] = likely = 1 + value % 7
        for _ in range(20 * likely if self.shortest_first else self.shuffle.randrange(20)):
            await asyncio.sleep(0)
        if request.id in self.hang:
            await asyncio.Event().wait()
        if self.lose[request.id] > 0:
            self.lose[request.id] -= 1
            self.done.put_nowait(LostSample(request.id, "its engine is gone", request.evaluation))
            return
        if request.id in self.kill:
            self.done.put_nowait(LostSample(request.id, "its engine died", request.evaluation, engine_died=True))
            return
        value = digest(request.seed, request.prompt_ids, first[1], self.weights)
        length = 1 + value % 7
        spans: tuple[VersionSpan, ...] = (VersionSpan(first[0], 0, length),)
        if self.version != first[0]:
            spans = (VersionSpan(first[0], 0, 1), VersionSpan(self.version, 1, max(length, 2)))
        reason = FinishReason.LENGTH if length == 7 else FinishReason.STOP
        sample = self._sample(request, value % 250, spans, reason, str(value))
        await self.store.put([sample])
        self.running.pop(request.id, None)
        self.done.put_nowait(sample.summary)

    async def abort(self, ids: Sequence[SampleId]) -> None:
        for i in ids:
            self.aborted.append(i)
            if task := self.running.pop(i, None):
                task.cancel()
                # The order in which samples finish doesn't depend on their lengths, so neither does the place where they are cut.
                made = self.likely.get(i, 1) - 1 if self.shortest_first else self.cut_at
                request = next(request for request in reversed(self.requests) if request.id == i)
                spans = (VersionSpan(self.version, 0, made),) if made else ()
                part = self._sample(request, 0, spans, FinishReason.ABORT, "3")
                await self.store.put([part])
                self.done.put_nowait(part.summary)

    async def finished(self) -> list[FinishedSample | LostSample]:
        return [await self.done.get()]

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        self.version, self.weights = publication.version, publication.payload.checksum
        self.published.append(publication.version)
        return PublicationReport(publication.version, 0.01, 100, 1e-6, ("engine-0",))

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        self.reshaped.append((tensor_parallel, one_by_one))
        await asyncio.sleep(0)
        if tensor_parallel in self.unfit:
            return ReshapeReport(self.tensor_parallel, {ReshapePhase.START: 2.0}, "it doesn't fit")
        self.tensor_parallel = tensor_parallel
        return ReshapeReport(tensor_parallel, {ReshapePhase.START: 2.0})

    @property
    def pods(self) -> Mapping[str, PodLoad]:
        return {pod: self.pod_loads.get(pod, PodLoad(1, 0)) for pod in self.state.pods}

    def release(self, pods: Collection[str]) -> None:
        self.released.append([*pods])

    async def loads(self) -> Mapping[str, Load]:
        self.asked_for_loads += 1
        return dict(self.load)

    async def turn_engines(self, previous: TurnEngines) -> TurnEngines:
        await asyncio.Event().wait()
        return previous

    async def changed(self, known: FleetState) -> FleetState:
        while self.state == known:
            self.news.clear()
            await self.news.wait()
        return self.state

    def set_state(self, state: FleetState) -> None:
        self.state = state
        self.news.set()

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        self.calibrations.update(calibrations)

    async def close(self) -> None: ...


@dataclass
class FakeRewards:
    """The grade of a sample that is `held` waits until it no longer is; `given_up` are those whose grade was cancelled meanwhile."""

    store: FakeStore
    shuffle: random.Random = field(default_factory=lambda: random.Random(1))
    errors: set[PromptId] = field(default_factory=set)
    timeouts: set[PromptId | SampleId] = field(default_factory=set)
    flat: float | None = None
    unserved: tuple[str, ...] = ()
    graded: Counter = field(default_factory=Counter)
    isolation: dict[str, IsolationInForce] = field(default_factory=dict)
    loads: dict[str, PoolLoad] = field(default_factory=dict)
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    disagreeing: str = ""
    asked: dict[SampleId, Urgency] = field(default_factory=dict)
    held: set[SampleId] = field(default_factory=set)
    given_up: set[SampleId] = field(default_factory=set)
    flushed: list[set[SampleId]] = field(default_factory=list)
    limits: dict[SampleId, TimeLimit] = field(default_factory=dict)

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
        self.asked[sample] = urgency
        try:
            while sample in self.held:  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.given_up.add(sample)
            raise
        for _ in range(self.shuffle.randrange(10)):
            await asyncio.sleep(0)
        (stored,) = await self.store.get([sample])
        self.graded[sample] += 1
        if sample.prompt in self.errors:
            return Grade(GradeKind.GRADER_ERROR, 0.0, 0.1, "the grader crashed")
        if {sample, sample.prompt} & self.timeouts:
            return Grade(GradeKind.TIMEOUT, 0.0, 1.0, parts={"main": None})
        score = self.flat if self.flat is not None else float(int(stored.text or 0) % 4)
        return self._timed(sample, score, limits) or Grade(GradeKind.SCORED, score, 0.1, parts={"main": score})

    def _timed(self, sample: SampleId, score: float, limits: Mapping[str, TimeLimit] | None) -> Grade | None:
        """The grade where timeouts are learned: it takes half a second to three, by its name."""
        limit = (limits or {}).get("main")
        if limit is None:
            return None
        self.limits[sample] = limit
        seconds = 0.5 + digest("seconds", sample) % 100 / 40
        if limit.in_force is not None and seconds > limit.in_force:
            time = GradeTime(limit.in_force, 0.1, limit.seconds, killed=True)
            return Grade(GradeKind.TIMEOUT, 0.0, 1.0, parts={"main": None}, times={"main": time})
        time = GradeTime(seconds, 0.1, limit.seconds, limit.audit)
        return Grade(GradeKind.SCORED, score, 0.1, parts={"main": score}, times={"main": time})

    def flush(self) -> None:
        self.flushed.append(set(self.asked))

    async def close(self) -> None: ...


@dataclass
class FakeTrainer:
    """Weights are a digest of everything that was trained. `crash` is the step at which it dies, and whether after the update.

    A write of a checkpoint waits for `may_write`; `full` has the numbers of the writes that find no space. Files of samples wait for
    `may_write_samples`; those of the steps in `no_space` find none. It `holds` its last publication. `exports` are the names of the
    exports that were begun; those with a number in `no_room` find no space, and each waits for `may_export` before it is whole.
    """

    store: FakeStore
    crash: tuple[int, str] | None = None
    full: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    loads: int = 0
    weights: str = "start"
    attention: str = "packed"
    requests: list[TrainRequest] = field(default_factory=list)
    trained: dict[SampleId, GeneratedSample] = field(default_factory=dict)
    writes: int = 0
    snapshots: list[str] = field(default_factory=list)
    no_space: set[int] = field(default_factory=set)
    exports: list[str] = field(default_factory=list)
    no_room: set[int] = field(default_factory=set)
    holds: bool = False
    lost_in_chunk: list[tuple[int, int]] = field(default_factory=list)
    chunks: list[ChunkRequest] = field(default_factory=list)
    accumulated: list[tuple[ChunkRequest, list[GeneratedSample]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_write, self.may_write_samples, self.may_accumulate, self.may_export = (
            asyncio.Event() for _ in range(4)
        )
        for may in (self.may_write, self.may_write_samples, self.may_accumulate, self.may_export):
            may.set()

    async def load(self) -> ModelInfo:
        self.loads += 1
        self.weights, self.accumulated = "start", []
        return ModelInfo(1, 100, 256, self.attention)

    async def accumulate(self, request: ChunkRequest) -> float:
        if (chunk := (request.step, request.chunks)) in self.lost_in_chunk:
            self.lost_in_chunk.remove(chunk)
            raise TrainerLost("a trainer rank failed")
        self._check_chunks(request)
        await self.may_accumulate.wait()
        data = await self.store.get([sample.id for sample in request.samples])
        self.chunks.append(request)
        self.accumulated = [*(self.accumulated if request.chunks else ()), (request, data)]
        return 0.1

    def _check_chunks(self, request: ChunkRequest | TrainRequest) -> None:
        held = [chunk.step for chunk, _ in self.accumulated]
        if request.chunks and held != [request.step] * request.chunks:
            raise NotStreamed(f"chunks of steps {held}")

    async def train(self, request: TrainRequest) -> TrainReport:
        self._check_chunks(request)
        if request.step in self.lost:
            self.lost.remove(request.step)
            self.weights = "in doubt"
            raise TrainerLost("a trainer rank failed")
        if self.crash == (request.step, "before"):
            raise Crash("a rank died")
        data = await self.store.get([sample.id for sample in request.samples])
        for chunk, accumulated in self.accumulated if request.chunks else ():
            data += accumulated
            request = replace(request, samples=(*request.samples, *chunk.samples))
        data.sort(key=lambda sample: sample.id)
        request = replace(request, samples=tuple(sorted(request.samples, key=lambda sample: sample.id)), chunks=0)
        self.accumulated = []
        await asyncio.sleep(0)
        tokens = [(d.id, d.token_ids.tolist()) for d in data]
        self.weights = f"{digest(self.weights, request, tokens):x}"
        self.requests.append(request)
        self.trained.update({sample.id: sample for sample in data})
        if self.crash == (request.step, "after"):
            raise Crash("the driver died between train and commit")
        return TrainReport(request.step, {"actor/pg_loss": 0.5, "actor/grad_norm": 1.0})

    async def publish(self, version: int) -> WeightPublication:
        self.holds = True
        return WeightPublication(version, PackedSource(Packed((), self.weights)), (), ())

    async def published(self) -> str:
        return self.weights

    async def checksum(self) -> str:
        return self.weights

    async def holds_publication(self) -> bool:
        return self.holds

    async def snapshot(self) -> None:
        self.snapshots.append(self.weights)

    async def write(self, directory: Path) -> Sequence[FileEntry]:
        self.writes += 1
        if self.writes in self.full:
            raise OSError(28, "No space left on device")
        weights = self.snapshots[-1]
        await self.may_write.wait()
        assert weights == self.snapshots[-1], "there is one copy, and it is being written"
        await self._write(directory, weights)
        return described(directory)

    async def write_samples(self, request: SampleFileRequest, root: Path) -> None:
        await self.may_write_samples.wait()
        held = self.store.samples

        def responses(ids: Sequence[SampleId]) -> dict[SampleId, Response]:
            if request.step in self.no_space:
                raise OSError(28, "No space left on device")
            return {id_: held[id_].response for id_ in ids}

        write(root, request, responses, lambda ids: [f"prompt {held[id_].prompt_ids[0]}" for id_ in ids])

    async def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None:
        for entry in entries:
            read(directory, entry)
        self.weights = (directory / "weights").read_text()

    async def export(self, directory: Path, partial: Path) -> None:
        self.exports.append(directory.name)
        if len(self.exports) in self.no_room:
            raise OSError(28, "No space left on device")
        await self._write(partial, self.weights)
        await self.may_export.wait()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        await asyncio.to_thread(partial.rename, directory)

    async def _write(self, directory: Path, weights: str) -> None:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        (directory / "weights").write_text(weights)

    async def close(self) -> None: ...


class FakeSource:
    def __init__(self, rows: int = 5) -> None:
        self.rows, self.positions = rows, Counter[str]()
        self.skipped: int | None = None

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        rows = [row for row in range(self.rows) if domain in ("", self.domain(row))]
        first = self.positions[domain]
        self.positions[domain] += count
        return [PromptId(number // len(rows), rows[number % len(rows)]) for number in range(first, first + count)]

    def row(self, prompt: PromptId) -> Row:
        return Row(prompt, f"prompt {prompt.row}", (prompt.row,), self.domain(prompt.row))

    def forget(self, prompts: Iterable[PromptId]) -> None: ...

    def domain(self, row: int) -> str:
        return "odd" if row % 2 else "even"

    def state(self) -> Mapping[str, Any]:
        return {"positions": dict(self.positions)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.positions = Counter(state["positions"])


def make_spec(**rounds: Any) -> RLJobSpec:
    """A small job; keyword arguments go to `rounds`, except `algorithm`, `checkpoint`, `sampling`, `trainer`, `evaluation`, `reward` and `samples`."""
    columns = {"domain": "parity"} if "quotas" in rounds else {}
    algorithm = {"group_size": 2, **rounds.pop("algorithm", {})}
    sampling = {"max_tokens": 7, **rounds.pop("sampling", {})}
    checkpoint = {"every_steps": 2, "keep": 10, **rounds.pop("checkpoint", {})}
    dataset: dict[str, Any] = {"files": {"paths": ["/data/train.jsonl"]}, "columns": columns}
    samples, trainer = rounds.pop("samples", None), rounds.pop("trainer", {})
    reward = rounds.pop("reward", {})
    if "evaluation" in rounds:
        dataset["evaluation"] = {"files": {"paths": ["/data/test.jsonl"]}, **rounds.pop("evaluation")}
    return RLJobSpec.model_validate(
        {
            "runtime_ref": {"name": "local"},
            "model": {"path": "/models/tiny"},
            "dataset": dataset,
            "algorithm": algorithm,
            "rounds": {"steps": 5, "prompts_per_round": 2, **rounds},
            "rollout": {"sampling": sampling},
            "rewards": [{"name": "main", "function": "rewards:main", "solved_at": 1.0, **reward}],
            "trainer": trainer,
            "checkpoint": checkpoint,
            "samples": samples,
        }
    )


def fixed_shape(ledger: Ledger) -> ShapePlan:
    """The plan of a job whose engines have one device each."""
    return ShapePlan(Bounds((1,), 1), Limits(1, 1), {}, None, View(ledger), 1)


class EditedBroker(LocalBroker):
    """A broker for a job whose spec is edited, and whose pods are granted, by the test."""

    def __init__(self, incarnation: int, spec: RLJobSpec) -> None:
        super().__init__(incarnation)
        self._spec, self.editable = spec, True
        self._news = asyncio.Event()
        self._fixed: RolloutGrant | None = None
        self._cpus: RewardGrant | None = None
        self._cpu_news = asyncio.Event()
        self._drain: str | None = None
        self._drain_news = asyncio.Event()

    def drain(self, since: str) -> None:
        """Has pods leave their node, since then."""
        self._drain = since
        self._drain_news.set()

    async def drained(self, previous: str | None) -> str:
        while self._drain is None or self._drain == previous:
            self._drain_news.clear()
            await self._drain_news.wait()
        return self._drain

    def edit(self, **sections: Any) -> None:
        """Overrides these fields in sections of the spec, or sections as a whole."""
        made = {
            name: getattr(self._spec, name).model_copy(update=fields) if isinstance(fields, Mapping) else fields
            for name, fields in sections.items()
        }
        self._spec = self._spec.model_copy(update=made)
        self._news.set()

    async def edited(self, known: RLJobSpec) -> RLJobSpec:
        while self._spec == known:
            self._news.clear()
            await self._news.wait()
        return self._spec

    def grant(self, grant: RolloutGrant) -> None:
        """Grants this from now on, whatever is asked for."""
        self._fixed = grant
        self._asked.set()

    def grant_cpus(self, grant: RewardGrant) -> None:
        """Grants this from now on, whatever is asked for."""
        self._cpus = grant
        self._cpu_news.set()

    async def granted_cpus(self, known: RewardGrant | None) -> RewardGrant:
        while self._cpus is None or self._cpus == known:
            self._cpu_news.clear()
            await self._cpu_news.wait()
        return self._cpus

    async def granted(self, known: RolloutGrant | None) -> RolloutGrant:
        while self._fixed is None or self._fixed == known:
            self._asked.clear()
            await self._asked.wait()
        return self._fixed


class Site:
    """A job's checkpoint directory, and its successive drivers. `adopted` is the directory of the job it resumes from."""

    def __init__(
        self, root: Path, spec: RLJobSpec, policy: Policy | None = None, *, adopted: Path | None = None
    ) -> None:
        self.root, self.spec, self._adopted = root, spec, adopted
        self.tokenizer: Any = None
        self.policy = policy or open_policy(spec)
        self.incarnation = 0
        self.digests: Digests = {}
        self.sources: dict[str, dict[str, str]] = {}
        self.observers: Sequence[Callable[[Context], Observer]] = OBSERVERS

    def driver(self, order: int = 0, previous: DriverStatus | None = None) -> Driver:
        """The next incarnation with new components; `order` seeds the order in which things finish."""
        self.incarnation += 1
        self.store = FakeStore()
        self.fleet = self.open_fleet(order)
        self.rewards = FakeRewards(self.store, random.Random(order + 1))
        self.trainer = FakeTrainer(self.store)
        self.source = FakeSource()
        self.checkpoints = self._checkpoints()
        held_out = [Row(PromptId(0, row), f"test {row}", (100 + row,), "") for row in range(3)]
        evaluation = tuple(held_out) if self.spec.dataset.evaluation else ()
        components = Components(
            self.store,
            self.fleet,
            self.rewards,
            self.trainer,
            self.source,
            self.checkpoints,
            evaluation,
            self.tokenizer,
            digests=self.digests,
            episodes=self.open_episodes(),
        )
        self.rewards.sources = self.sources
        job = Job("job-uid", self.spec, self.root, self.incarnation)
        self.broker = EditedBroker(self.incarnation, self.spec)
        self.broker.previous = previous or DriverStatus()
        self.seconds = 0.0
        self.reporter = Reporter(
            job,
            self.broker,
            Reports([JsonLines(job.home / "metrics.jsonl")], self.clock),
            StageClock(self.clock),
            self.clock,
        )
        self.current = Driver(job, components, self.policy, self.reporter, self.broker, self.clock, self.observers)
        return self.current

    @property
    def step(self) -> int:
        """The last step that the driver has committed, 0 before it has restored its state."""
        return self.current._view.step if hasattr(self.current, "_view") else 0

    @property
    def samples(self) -> str:
        """How many samples are in each state."""
        return samples_line(getattr(self.current, "_view", None))

    def open_fleet(self, order: int) -> FakeFleet:
        """The fleet of the next driver."""
        return FakeFleet(self.store, random.Random(order), tensor_parallel=self.spec.rollout.tensor_parallel)

    def open_episodes(self) -> EpisodePods | None:
        """The environment pods of the next driver: none, so its fleet makes samples."""
        return None

    def _checkpoints(self) -> CheckpointStore:
        keep = self.spec.checkpoint.keep
        if self._adopted is None:
            return CheckpointStore(self.root, keep, self.incarnation)
        return AdoptingStore(self.root, keep, self.incarnation, self._adopted, ResumeFrom(claim_name="other"))

    def clock(self) -> float:
        self.seconds += 0.001
        return 1_700_000_000.0 + self.seconds
