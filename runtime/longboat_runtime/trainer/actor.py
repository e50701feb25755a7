"""The Ray actor around one rank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import ray

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.imports import uncollected
from longboat_runtime.sample_files.contents import SampleFileRequest
from longboat_runtime.samples import GeneratedSample, Response, SampleId
from longboat_runtime.stacks import thread_stacks
from longboat_runtime.store.protocol import SampleStore
from longboat_runtime.trainer.protocol import ChunkRequest, ModelInfo, TrainReport, TrainRequest
from longboat_runtime.weights.layout import BucketLayout, sender_ranks

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

# Checkpoints and samples are written, and weights handed out, beside the steps that follow; `stacks` answers while another call hangs.
CONCURRENCY_GROUPS = {"write": 1, "samples": 1, "stacks": 1, "buckets": 4}


class TrainerActor:
    """One rank of a trainer group. Methods are called on all ranks, unless they say otherwise or are about samples or groups.

    Nothing imports torch before an actor is created: the driver imports this module, and torch would cost it seconds.
    """

    def __init__(self, spec: RLJobSpec, rank: int, world_size: int, store: SampleStore) -> None:
        self._spec, self._rank, self._world_size, self._store = spec, rank, world_size, store
        self._snapshot: dict[str, Tensor] = {}
        self._tokenizer: PreTrainedTokenizerBase | None = None

        with uncollected():
            import torch

            from longboat_runtime.trainer.threads import available_threads

        torch.set_num_threads(available_threads(spec.trainer.devices_per_pod))

    def address(self) -> str:
        """Serves the store at which the group meets, and returns its address. Only on rank 0."""
        from longboat_runtime.trainer import process_group

        return process_group.serve(ray.util.get_node_ip_address())

    def load(self, address: str, fits: bool = True) -> ModelInfo:
        """Joins the group and loads the model; `fits`: see `TrainerRank.load`. Raises SpecProblem."""
        with uncollected():
            import torch.distributed as dist
            from transformers import AutoModelForCausalLM  # noqa: F401 - what loads the model imports it

            from longboat_runtime.trainer.publishing import RankPublisher
            from longboat_runtime.trainer.rank import TrainerRank
            from longboat_runtime.weights.groups import SenderGroups

        self._trainer = TrainerRank(self._spec, self._rank, self._world_size, address)
        # Collectives of `write` must not mix with those of a step.
        self._writers = dist.new_group(backend="gloo")
        info = self._trainer.load(fits=fits)
        self._groups = SenderGroups()
        self._publisher = RankPublisher(
            self._trainer, sender_ranks(self._world_size, self._spec.trainer.devices_per_pod)
        )
        return info

    def accumulate(self, request: ChunkRequest) -> float:
        """Accumulates the gradient of a chunk. Raises NotStreamed, and what `train` raises."""
        return self._trainer.accumulate(request, self._fetch)

    def train(self, request: TrainRequest) -> TrainReport:
        """Makes one step. Raises SpecProblem, NotStreamed, KeyError for samples that the store doesn't hold, or StoreUnreachable."""
        return self._trainer.train(request, self._fetch)

    def layout(self) -> tuple[BucketLayout, ...]:
        """Returns the buckets of every publication."""
        return self._publisher.layout

    def begin_publication(self, version: int, probe_ids: Sequence[int]) -> list[float]:
        """Announces a version, which `gather_publication` gathers; returns the log-probs of the probe, all but the first token's."""
        probe = self._trainer.probe(probe_ids)
        self._publisher.begin(version)
        return probe

    def gather_publication(self) -> dict[int, list[bytes]]:
        """Gathers the weights with all ranks, each bucket at its sender; returns the digests of the tensors of this rank's buckets."""
        return self._publisher.gather()

    @ray.method(concurrency_group="buckets")
    def bucket(self, version: int, number: int) -> tuple[list[bytes], list[ray.ObjectRef]]:
        """Puts a bucket into Ray's object store, once it has been gathered. Only on its sender. Raises PublicationGone.

        Returns the digests of its tensors, and the object, which exists as long as someone has its reference.
        """
        assert self._publisher.sender is not None, "ask the bucket's sender"
        with self._publisher.sender.reading(version, number) as (bucket, digests):
            return digests, [ray.put(bucket.data)]

    @ray.method(concurrency_group="buckets")
    def send(self, version: int, number: int, keys: Sequence[str]) -> tuple[list[bytes], list[str]]:
        """Broadcasts a bucket to these groups, once it has been gathered. Only on its sender. Raises PublicationGone.

        Returns the digests of its tensors, and the keys of groups that were left behind.
        """
        import torch

        assert self._publisher.sender is not None, "ask the bucket's sender"
        with self._publisher.sender.reading(version, number) as (bucket, digests):
            return digests, self._groups.broadcast(torch.from_numpy(bucket.data), keys)

    @ray.method(concurrency_group="stacks")
    def group_versions(self) -> dict[str, str]:
        """See `weights.groups.versions`."""
        from longboat_runtime.weights.groups import versions

        return versions()

    @ray.method(concurrency_group="buckets")
    def open_group(self, key: str) -> str:
        """See `SenderGroups.open`."""
        return self._groups.open(key, ray.util.get_node_ip_address())

    @ray.method(concurrency_group="buckets")
    def join_group(self, key: str, address: str, size: int, seconds: float) -> None:
        """See `SenderGroups.join`."""
        self._groups.join(key, address, size, seconds)

    @ray.method(concurrency_group="buckets")
    def leave_group(self, key: str) -> None:
        """See `SenderGroups.leave`."""
        self._groups.leave(key)

    def checksum(self) -> dict[int, list[bytes]]:
        """Gathers the weights without publishing them; returns the digests of the tensors of this rank's buckets, by number."""
        self._publisher.begin(None)
        return self._publisher.gather()

    def snapshot(self) -> None:
        """Copies the state into host memory, for `write`. Not while that is under way: there is only one copy."""
        self._snapshot = self._trainer.snapshot()

    @ray.method(concurrency_group="write")
    def write(self, directory: Path) -> tuple[FileEntry, ...]:
        """Writes the last snapshot; returns descriptions of this rank's files. Raises OSError."""
        from longboat_runtime.checkpoint import sharded

        return sharded.write(self._snapshot, directory, self._writers)

    @ray.method(concurrency_group="samples")
    def prepare_samples(self) -> None:
        """Loads what `write_samples` needs, which takes a moment the first time."""
        from longboat_runtime.data.prompts import load_tokenizer
        from longboat_runtime.sample_files.files import prepare

        if self._tokenizer is None:
            prepare()
            self._tokenizer = load_tokenizer(self._spec.model)

    @ray.method(concurrency_group="samples")
    def write_samples(self, request: SampleFileRequest, root: Path) -> None:
        """Writes the file of a step's samples. Only on rank 0. Raises OSError."""
        from longboat_runtime.sample_files.files import write

        async def responses(ids: Sequence[SampleId]) -> Mapping[SampleId, Response]:
            return await self._store.responses(ids)

        self.prepare_samples()
        write(root, request, lambda ids: asyncio.run(responses(ids)), self._prompts)

    def _prompts(self, samples: Sequence[SampleId]) -> list[str]:
        """Decodes the prompts of these samples, special tokens included."""
        assert self._tokenizer is not None, "prepare first"
        decode = self._tokenizer.decode
        return [
            str(decode(sample.prompt_ids.tolist(), clean_up_tokenization_spaces=False))
            for sample in self._fetch(samples)
        ]

    def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None:
        """Takes the state from a checkpoint. Raises SpecProblem if it belongs to another model, FilesDamaged, and OSError."""
        self._trainer.restore(directory, entries)

    def export(self, directory: Path, partial: Path) -> None:
        """Gathers the weights with all ranks; rank 0 writes a Hugging Face directory, as `partial` until it is whole. Raises OSError."""
        from longboat_runtime.checkpoint.export import export
        from longboat_runtime.trainer.sharding import TORCH_DTYPES

        def write(weights: Iterator[tuple[str, Tensor]]) -> None:
            dtype = str(TORCH_DTYPES[self._spec.model.dtype]).removeprefix("torch.")
            own = self._spec.dataset.chat_template
            export(Path(self._spec.model.path), weights, dtype, directory, partial, own.text if own else None)

        self._gathered(write)

    def _gathered(self, take: Callable[[Iterator[tuple[str, Tensor]]], T]) -> T | None:
        """Gathers the weights with all ranks, of which each has to take part. Rank 0 returns what `take` makes of them, the others None."""
        weights = self._trainer.weights()
        try:
            return take(weights) if self._rank == 0 else None
        finally:
            # The others wait for rank 0 in every gather, also when it has failed.
            for _ in weights:
                pass

    @ray.method(concurrency_group="stacks")
    def stacks(self) -> str:
        """Returns the stacks of this process's threads; see `thread_stacks`."""
        return thread_stacks()

    @ray.method(concurrency_group="stacks")
    def alive(self) -> None:
        """Answers as long as the process lives, whatever it does."""

    def _fetch(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        async def get() -> list[GeneratedSample]:
            return await self._store.get(ids)

        return asyncio.run(get())
