"""The protocol of the trainer: all ranks as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.samples import SampleId, SampleSize
from longboat_runtime.trainer.flops import ModelFlops
from longboat_runtime.weights.publication import WeightPublication


@dataclass(frozen=True, slots=True)
class TrainSample:
    """Names a sample of a training batch, whose data is in the store, with its advantage and size from the driver.

    With the sizes, all ranks can plan the whole step before any of them fetches its part.
    """

    id: SampleId
    advantage: float
    size: SampleSize


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Asks to accumulate the gradient of some groups of the step while its round is open.

    `samples` are sorted by id; `denominator` is the constant number of samples of a full batch; `chunks` of the step were accumulated
    before.
    """

    step: int
    samples: tuple[TrainSample, ...]
    denominator: int
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """Asks for one optimizer step out of `steps`, over which the learning-rate schedule runs.

    `samples` are sorted by id, and are those that no chunk had; `chunks` is how many chunks were accumulated before. With 0 the batch is
    whole. `denominator` is the constant number of samples of a full batch.
    """

    step: int
    steps: int
    samples: tuple[TrainSample, ...]
    denominator: int
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Reports the metrics of one optimizer step, under verl's names where verl has them (`actor/pg_loss`, `actor/grad_norm`, ...).

    `skipped` of its `minibatches` had a gradient that was not finite; all ranks skipped the same ones. `seconds` is what forward and
    backward passes and the optimizer took, without fetching samples and the log-probs of other weights.
    """

    step: int
    metrics: Mapping[str, float]
    minibatches: int = 1
    skipped: int = 0
    seconds: float = 0.0

    @property
    def trained(self) -> bool:
        """Returns whether the weights may have changed."""
        return self.skipped < self.minibatches


# `ModelInfo.attention` of a model that computes packed samples, without padding.
PACKED = "packed"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Describes the loaded model.

    `attention` says in words how it computes several samples together. `device` is the type of its devices (`cuda`, `cpu`), `flops` has
    the FLOPs of training and of one of them.
    """

    parameters: int
    max_length: int
    vocabulary: int
    attention: str = PACKED
    device: str = "cpu"
    flops: ModelFlops | None = None


class Plan(Protocol):
    """Says what is known of a job's memory before its model is loaded."""

    async def fits(self) -> bool:
        """Returns whether a bin fits if layers aren't recomputed. Raises SpecProblem if the job doesn't fit at all."""


class TrainerGroup(Protocol):
    """Runs all FSDP2 ranks as one trainer."""

    async def load(self) -> ModelInfo: ...

    async def accumulate(self, request: ChunkRequest) -> float:
        """Adds the gradient of a chunk to those before it; one with none before it replaces whatever was accumulated.

        Returns the seconds of forward and backward passes, counted as in TrainReport. Raises NotStreamed if a rank doesn't hold the chunks
        before it. Nothing has changed then, nor if a sample is gone (KeyError).
        """

    async def train(self, request: TrainRequest) -> TrainReport:
        """Computes and applies the step on all ranks. Without chunks, discards what was accumulated.

        It is not durable and not published until the driver says so.

        Raises NotStreamed if a rank doesn't hold the request's chunks, or if in Float16 the gradient isn't finite at the scale that
        they were accumulated at. The weights are unchanged then, and the whole batch can be trained. Raises SpecProblem
        (WeightsNotFinite) if the weights are no longer finite.
        """

    async def publish(self, version: int) -> WeightPublication: ...

    async def checksum(self) -> str:
        """Computes the checksum that a publication of the weights would have. Reads no files, and keeps nothing."""

    async def holds_publication(self) -> bool:
        """Returns whether the last publication can still be fetched. Answers while a step is computed."""

    async def snapshot(self) -> None:
        """Copies model, optimizer and RNG state of all ranks into host memory, after the write of an earlier copy has ended."""

    async def write(self, directory: Path) -> Sequence[FileEntry]:
        """Writes the newest snapshot; returns descriptions of its files once these and the directory are fsynced.

        Steps may be computed meanwhile.
        """

    async def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None:
        """Takes the state from what `write` wrote into `directory` and described in `entries`, on any number of ranks.

        Raises FilesDamaged if any rank finds a file that isn't as described. No rank has taken anything then.
        """

    async def write_samples(self, request: SampleFileRequest, root: Path) -> None:
        """Writes the file of a step's samples below the job's directory `root`. Steps may be computed meanwhile.

        The store holds the samples until then. Raises OSError, and leaves no partial file.
        """

    async def export(self, directory: Path, partial: Path) -> None:
        """Writes a Hugging Face directory, as `partial` until it is whole. Raises OSError, and leaves nothing of it then."""

    async def close(self) -> None: ...
