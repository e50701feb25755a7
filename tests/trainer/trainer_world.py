"""What trainer tests share: a spec, samples, and ranks in this process or in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.multiprocessing
from torch import Tensor
from torch.distributed.tensor import DTensor

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint import sharded
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Segment, VersionSpan
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.platform import Platform
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.checkpoints import described

VOCABULARY = 264
PRELOADED = [
    "longboat_runtime.checkpoint.sharded",
    "longboat_runtime.trainer.rank",
    "torch.distributed.fsdp",
    "transformers.models.qwen3.modeling_qwen3",
]


def make_spec(model: Path, **sections: Mapping[str, Any]) -> RLJobSpec:
    """A valid spec; `sections` (trainer, algorithm, ...) replace or add keys of the spec's sections."""
    values: dict[str, dict[str, Any]] = {
        "model": {"path": str(model), "dtype": "Float32"},
        "algorithm": {"importanceCap": 0},
        "rounds": {"steps": 100, "promptsPerRound": 4},
        "rollout": {"sampling": {"maxTokens": 32}},
        "trainer": {"maxTokensPerBin": 64, "optimizer": {"learningRate": 1e-3}},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "test"},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "rewards": [{"name": "scorer", "kind": "ReasoningGym"}],
            **values,
        }
    )


def make_samples(count: int, seed: int = 0, longest: int = 24, group_size: int = 4) -> list[GeneratedSample]:
    """Samples of random tokens and log-probs, sorted by id."""
    random = np.random.default_rng(seed)
    samples = []
    for position in range(count):
        prompt, response = int(random.integers(1, 9)), int(random.integers(1, longest + 1))
        segment = Segment.single_turn(
            random.integers(4, VOCABULARY, prompt).astype(np.int32),
            random.integers(4, VOCABULARY, response).astype(np.int32),
            random.normal(-5.5, 0.2, response).astype(np.float32),
            (VersionSpan(0, 0, response),),
        )
        samples.append(
            GeneratedSample(
                id=SampleId(0, position // group_size, 0, position % group_size),
                segments=(segment,),
                finish_reason=FinishReason.LENGTH if response == longest else FinishReason.STOP,
                text="",
                engine="engine",
            )
        )
    return samples


def make_request(samples: Sequence[GeneratedSample], step: int = 1, denominator: int | None = None) -> TrainRequest:
    """A step over `samples` with advantages that differ."""
    entries = tuple(TrainSample(sample.id, float(np.sin(1.0 + i)), sample.size) for i, sample in enumerate(samples))
    return TrainRequest(step, 100, entries, denominator or len(samples))


def fetch_from(samples: Sequence[GeneratedSample]) -> Callable[[Sequence[SampleId]], list[GeneratedSample]]:
    """A sample store."""
    by_id = {sample.id: sample for sample in samples}
    return lambda ids: [by_id[id_] for id_ in ids]


def full(tensor: Tensor) -> Tensor:
    """A weight, or its gradient, of all ranks together. A collective if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a weight, or of its gradient, that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def only_rank(spec: RLJobSpec, platform: Platform = MACHINE) -> Iterator[TrainerRank]:
    """A group of one rank in this process, loaded."""
    rank = TrainerRank(spec, 0, 1, process_group.serve("127.0.0.1"), platform)
    try:
        rank.load()
        yield rank
    finally:
        process_group.leave()


def run_ranks(world_size: int, work: Callable[[TrainerRank, Path], None], spec: RLJobSpec, directory: Path) -> None:
    """Runs `work(rank, directory)` on loaded ranks in processes of their own; an error in any fails the test.

    They are forked from a process that has imported what they need: importing it in each takes longer than most of the work.
    """
    address = process_group.serve("127.0.0.1")
    multiprocessing.set_forkserver_preload(PRELOADED)
    try:
        torch.multiprocessing.start_processes(
            _run_rank,
            (world_size, address, work, spec.model_dump(mode="json"), directory),
            nprocs=world_size,
            start_method="forkserver",
        )
    finally:
        process_group.leave()


def _run_rank(
    index: int,
    world_size: int,
    address: str,
    work: Callable[[TrainerRank, Path], None],
    spec: dict[str, Any],
    directory: Path,
) -> None:
    torch.set_num_threads(1)
    rank = TrainerRank(RLJobSpec.model_validate(spec), index, world_size, address)
    try:
        rank.load()
        work(rank, directory)
    finally:
        process_group.leave()


@contextmanager
def put_back(rank: TrainerRank, directory: Path) -> Iterator[None]:
    """Puts a rank that is alone back into the state before the block, which is written into `directory`."""
    sharded.write(rank.snapshot(), directory)
    spec = rank.spec
    yield
    rank.spec = rank.updates.spec = spec
    rank.restore(directory, described(directory))
