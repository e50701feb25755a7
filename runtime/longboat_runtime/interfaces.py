"""Protocols between the components of the runtime: what the driver may ask of each, and nothing else.

The driver runs one asyncio loop. Everything here is called from that loop; implementations hide Ray behind it.

Over 400 lines: one protocol for each component, so that all a driver may ask for can be read in one place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.result import IsolationInForce
from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.samples import (
    FleetReport,
    GeneratedSample,
    Grade,
    PromptId,
    Response,
    Row,
    SampleId,
    SampleRequest,
    SampleSize,
    TimeLimit,
)
from longboat_runtime.trainer.flops import ModelFlops


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One engine at one moment. `kv_usage` is a share (0..1) of the `kv_tokens` that it holds at most, of all sequences together.

    Counters count from the engine's start.
    """

    name: str
    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    generated_tokens: int
    weight_version: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class WeightPublication:
    """Weights of one version, ready to be fetched by engines.

    `payload` is opaque to the driver (object references); `checksum` is over names, shapes and bytes of all tensors in the
    trainer's order. `probe_logprobs` are the trainer's log-probs of `probe_ids` (tokens 1..n given those before them).
    """

    version: int
    checksum: str
    payload: Any
    probe_ids: tuple[int, ...]
    probe_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """What one publication did. `parity` is the largest |engine - trainer| log-prob on the probe over serving engines."""

    version: int
    seconds: float
    bytes: int
    parity: float
    serving: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetState:
    """Engines at one moment, by name: those that serve, and of others that are up, why they refused or could not get the weights.

    `fetches` counts updates whose data could not be had. `deaths` counts engines that have died on their own, in pods that stayed up;
    `last_death` says what the last one died of. `pods` are the rollout pods that have joined and are there, `drained` those of the
    released ones in which nothing runs any more, and nothing will.
    """

    serving: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unreached: Mapping[str, str] = field(default_factory=dict)
    fetches: int = 0
    deaths: int = 0
    last_death: str = ""
    pods: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()


class ReshapePhase(StrEnum):
    """Phases of a reshape: responses move away, engines end, others start, and get the weights and pass the gate."""

    DRAIN = "drain"
    END = "end"
    START = "start"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class ReshapeReport:
    """A reshape, after which engines have `tensor_parallel` devices each. `seconds` are those of its phases.

    `failure` says why they have what they had before: if they are not `unfit`, for a reason that has nothing to do with the shape.
    """

    tensor_parallel: int
    seconds: Mapping[ReshapePhase, float]
    failure: str | None = None
    unfit: bool = True


class Engine(Protocol):
    """One vLLM instance of one tensor-parallel size, inside its actor's process. Only its own step loop touches vLLM."""

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        """Begins samples; one that is in `begun` continues from the tokens that it has, and comes back with all of them."""

    def abort(self, ids: Sequence[SampleId]) -> None:
        """Ends samples; each comes back through `drain_finished` with reason ABORT (or its own reason if it had ended)."""

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        """Waits up to `timeout` seconds for at least one finished sample, and then a moment for others if more are running."""

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        """Loads, verifies checksum, resets the prefix cache, probes; returns the parity. Raises and stops serving if not equal.

        `calibrated` is the parity of the first publication that an engine like this one had passed; None if none has.
        """

    def stats(self) -> EngineStats: ...

    def take_load(self) -> Load:
        """What it did since the last call."""

    def shutdown(self) -> None: ...


class SampleStore(Protocol):
    """Holds generated samples until they are trained or given up. Lives in a pod that outlives engines."""

    async def put(self, samples: Sequence[GeneratedSample]) -> None:
        """A sample that is held already is passed over, unless what is held is unfinished."""

    async def refuse(self, engine: str) -> None:
        """Nothing that this engine puts is taken any more: it is gone."""

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        """Raises KeyError naming the ids that are missing."""

    async def responses(self, ids: Sequence[SampleId]) -> Mapping[SampleId, Response]:
        """What graders need of those that are held."""

    async def delete(self, ids: Sequence[SampleId]) -> None: ...

    async def held(self) -> list[SampleId]: ...


class RolloutFleet(Protocol):
    """All engines behind one router."""

    async def submit(self, requests: Sequence[SampleRequest]) -> None: ...

    async def abort(self, ids: Sequence[SampleId]) -> None: ...

    async def finished(self) -> list[FleetReport]:
        """Waits for at least one report. The store holds samples named here, unless they are lost or have no token.

        A sample is reported once, finished or lost; any number of moves come before that.
        """

    async def drain(self, engines: Collection[str]) -> None:
        """Nothing new goes to these engines, by name, and what runs in them continues in others.

        Returns once they have nothing left and the store holds everything that they drew.
        """

    @property
    def pods(self) -> Mapping[str, PodLoad]:
        """The rollout pods that have joined and are there, by name."""

    def release(self, pods: Collection[str]) -> None:
        """Exactly these pods are to go: they are drained, until another call no longer names them.

        `FleetState.drained` says which have been. One that hasn't joined is drained already.
        """

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        """Every engine serves the new version or stops serving. Engines that join later get the last publication first."""

    @property
    def tensor_parallel(self) -> int:
        """Devices of each engine."""

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        """Groups the devices of every rollout pod into engines of so many devices each.

        What runs moves; `one_by_one`, pod after pod, so that the others go on. If an engine of the new shape doesn't serve, those of
        the old shape are started again.
        """

    async def stats(self) -> list[EngineStats]: ...

    async def loads(self) -> Mapping[str, Load]:
        """What each engine did since the last call, by name."""

    async def changed(self, known: FleetState) -> FleetState:
        """The state, once it differs from `known`."""

    @property
    def calibrations(self) -> Mapping[str, float]:
        """What the parity gate has been calibrated with, for `calibrate` of a later fleet."""

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        """Engines are judged by these from now on; others calibrate themselves with their first publication."""

    async def close(self) -> None: ...


class Urgency(NamedTuple):
    """What a grade decides, as far as the driver knows when it asks for it; pools grade in this order (`reward.queue`).

    `round` is the number of the sample's round; an evaluation's grades are before those of any round (0), since the next optimizer step
    waits for them. `missing` is how many samples of its group lack a grade, this one included.
    """

    round: int = 0
    missing: int = 1


class RewardScheduler(Protocol):
    """All reward pools of a job. `unserved` are the names of those without a worker to grade samples."""

    @property
    def unserved(self) -> Sequence[str]: ...

    @property
    def isolation(self) -> Mapping[str, IsolationInForce]:
        """How the grades of each reward are kept apart now, by name of the reward."""

    @property
    def loads(self) -> Mapping[str, PoolLoad]:
        """What each pool has to do now, by name."""

    async def grade(
        self, sample: SampleId, row: Row, urgency: Urgency = ..., limits: Mapping[str, TimeLimit] | None = None
    ) -> Grade:
        """Grades a stored sample, by all pools at once that have a reward for it.

        A grader error has been retried on another worker before it is returned. Cancelling the call gives the grade up: it leaves the
        queue, or is ended where it runs. Raises KeyError if the store has lost the sample.

        `limits` are there for the rewards whose timeouts are learned, by name; the grade has `times` for them.
        """

    def flush(self) -> None:
        """Nothing more is being generated: samples that wait to be sent together with others are sent now."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One sample of a training batch: data by id from the store, its advantage and size from the driver.

    The size is here so that all ranks can plan the whole step before any of them fetches its part.
    """

    id: SampleId
    advantage: float
    size: SampleSize


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """One optimizer step out of `steps`, over which the learning-rate schedule runs.

    `samples` are sorted by id; `denominator` is the constant number of samples of a full batch.
    """

    step: int
    steps: int
    samples: tuple[TrainSample, ...]
    denominator: int


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Scalars of one optimizer step under verl's names (`actor/pg_loss`, `actor/grad_norm`, ...).

    `skipped` of its `minibatches` had a gradient that was not finite; all ranks skipped the same ones.
    """

    step: int
    metrics: Mapping[str, float]
    minibatches: int = 1
    skipped: int = 0

    @property
    def trained(self) -> bool:
        """The weights may have changed."""
        return self.skipped < self.minibatches


# `ModelInfo.attention` of a model whose samples go through it one after another, without padding.
PACKED = "packed"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the trainer knows once the model is loaded.

    `attention` is how samples go through it together, in words. `flops` says what training takes and what one of its devices can do.
    """

    parameters: int
    max_length: int
    vocabulary: int
    attention: str = PACKED
    flops: ModelFlops | None = None


class TrainerGroup(Protocol):
    """All FSDP2 ranks as one."""

    async def load(self) -> ModelInfo: ...

    async def train(self, request: TrainRequest) -> TrainReport:
        """Computes and applies the step on all ranks. Not durable and not published until the driver says so.

        Raises SpecProblem (WeightsNotFinite) if that has made weights that are not finite.
        """

    async def publish(self, version: int) -> WeightPublication: ...

    async def holds_publication(self) -> bool:
        """Whether the last publication can still be fetched. It answers while a step is computed."""

    async def snapshot(self) -> None:
        """Copies model, optimizer and RNG state of all ranks into host memory, once a write of an earlier copy has ended."""

    async def write(self, directory: Path) -> None:
        """Writes the newest snapshot; returns once files and directory are fsynced. Steps may be computed meanwhile."""

    async def restore(self, directory: Path) -> None: ...

    async def write_samples(self, request: SampleFileRequest, root: Path) -> None:
        """Writes the file of a step's samples below the job's directory `root`. Steps may be computed meanwhile.

        The store holds the samples until then. Raises OSError with nothing half-made left behind.
        """

    async def export(self, directory: Path) -> None:
        """Writes a Hugging Face directory."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete checkpoint of one step boundary.

    `directory` holds it; `state` is the driver's part as JSON values (data cursor, ledger, log position, weight version).
    """

    incarnation: int
    step: int
    directory: Path
    state: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """What `TrainerGroup.write` wrote and `restore` reads."""
        return self.directory / "trainer"


class Checkpoints(Protocol):
    """The complete checkpoints of all incarnations of a job, and the way to make another one.

    `damaged` names those that `newest` passed over because their files are not as they were written, each with the cause. The newest
    `keep` stay; a change of that number takes effect when the next one is saved.
    """

    damaged: tuple[str, ...]
    keep: int

    def newest(self) -> Manifest | None:
        """Highest incarnation first, then highest step: what a lost driver still writes never counts. None if there is none.

        Raises SpecProblem (CheckpointCorrupt) if there are some and none is whole.
        """

    async def save(
        self, step: int, state: Mapping[str, Any], write_model: Callable[[Path], Awaitable[None]]
    ) -> Manifest:
        """One transaction: `write_model(directory / "trainer")`, then files, directory and manifest, the manifest last.

        Then removes checkpoints beyond `keep`. Raises SpecProblem (CheckpointVolumeFull) or OSError with the earlier ones
        untouched and nothing half-made left behind.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A component that can say where its processes hang. Fleet, pool and trainer group implement it where they can."""

    async def stacks(self) -> Mapping[str, str]:
        """`stacks.thread_stacks()` of every process of the component, by name (`engine-0`, `trainer-1`).

        Actors answer from a concurrency group of their own, so that one that is stuck in a call answers too.
        """


class PromptSource(Protocol):
    """Rows in a resumable order."""

    @property
    def skipped(self) -> int | None:
        """Rows that are never drawn because they are too long, as far as they are known; None if such rows fail the job."""

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        """The next prompts of a domain (of all rows where the job has no quotas); wraps into a new epoch with its own permutation."""

    def row(self, prompt: PromptId) -> Row:
        """The row of a prompt. It is kept until `forget`, and can be had again after that."""

    def forget(self, prompts: Iterable[PromptId]) -> None:
        """The rows of these prompts aren't needed for now."""

    def domain(self, row: int) -> str:
        """The domain of a row; empty if rows have none."""

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
