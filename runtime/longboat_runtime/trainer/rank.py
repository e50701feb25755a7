"""One FSDP2 rank: loads its shards, computes its part of every step, saves and restores its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import sharded
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.model_config import language_model, longest_sequence
from longboat_runtime.samples import GeneratedSample, SampleId
from longboat_runtime.trainer.attention import described, packs
from longboat_runtime.trainer.batch import SampleBatch, WeightedSegment, build_batch, token_sample
from longboat_runtime.trainer.errors import NotStreamed
from longboat_runtime.trainer.forward import compiles, frozen_logprobs
from longboat_runtime.trainer.full_weights import full_weights
from longboat_runtime.trainer.loss_scale import LossScale
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.offload import Offload
from longboat_runtime.trainer.packing import SegmentTooLong
from longboat_runtime.trainer.platform import Platform
from longboat_runtime.trainer.protocol import ChunkRequest, ModelInfo, TrainReport, TrainRequest
from longboat_runtime.trainer.sharding import (
    TORCH_DTYPES,
    device_peak,
    load_sharded,
    model_flops,
    not_finite,
    parameter_count,
)
from longboat_runtime.trainer.step_plan import StepPlan, plan_step
from longboat_runtime.trainer.updates import Updates

Fetch = Callable[[Sequence[SampleId]], list[GeneratedSample]]

# The names under which a Float16 checkpoint holds the loss scale.
_SCALE, _GOOD_UPDATES = "loss_scale", "good_updates"


class TrainerRank:
    """One rank. Every method is a collective: all ranks must call it, in the same order and with the same arguments."""

    def __init__(self, spec: RLJobSpec, rank: int, world_size: int, address: str, platform: Platform = MACHINE) -> None:
        """Joins the group that meets at `address` (host:port on rank 0)."""
        torch.manual_seed(spec.rounds.seed)
        set_deterministic(spec.trainer.is_deterministic(platform.device), platform.device)
        self.spec, self.rank, self.world_size, self.platform = spec, rank, world_size, platform
        self.mesh, self._host_mesh = platform.join(address, rank, world_size, spec.trainer.replicate_degree)
        self.device = torch.device(self.mesh.device_type)

    def load(self, *, fits: bool = True) -> ModelInfo:
        """Reads and shards the model. Raises SpecProblem if it can't be trained as the spec says.

        `fits` says whether a bin fits into the device's memory without recomputation (`TrainerSpec.recomputes`).
        """
        platform = self.platform
        compiled = compiles(self.spec.trainer.compile, platform.device)
        if compiled:
            with platform.together():
                platform.check_compiler()
        bin_tokens = self.spec.trainer.max_tokens_per_bin
        model = load_sharded(self.spec.model, self.mesh, compiled=compiled, bin_tokens=bin_tokens, platform=platform)
        config = language_model(model.config.get_text_config().to_dict())
        longest = longest_sequence(config, self.spec.model.max_length, self.spec.model.path)
        if self.spec.trainer.recomputes(fits=fits):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if self.spec.trainer.offload_activations:
                Offload(platform, bin_tokens).install(model)
        reference = None
        if self.spec.algorithm.kl_coefficient > 0:
            reference = load_sharded(
                self.spec.model, self.mesh, compiled=compiled, frozen=True, bin_tokens=bin_tokens, platform=platform
            )
        self.model = model.train()
        self.updates = Updates(self.spec, model, reference, platform)
        self._check_weights("in the files", "spec.model.path", "give a model whose weights are finite numbers")
        self._snapshot: dict[str, Tensor] | None = None
        # Allocates the memory of snapshots now, so that a host that has too little fails before the first step.
        self.snapshot()
        return ModelInfo(
            parameter_count(model),
            longest,
            model.config.get_text_config().vocab_size,
            described(model.config),
            platform.device,
            model_flops(model, config, device_peak(self.device, self.spec.model.dtype)),
        )

    def accumulate(self, request: ChunkRequest, fetch: Fetch) -> float:
        """Adds the gradient of a chunk to those of the step's chunks before it. Returns the seconds of forward and backward passes.

        Raises what `train` raises before it changes anything.
        """
        plan, [batches] = self._minibatches(request, fetch)
        if not request.chunks:
            self.updates.discard()
        return self.updates.stream(request.step, plan, batches)

    def train(self, request: TrainRequest, fetch: Fetch) -> TrainReport:
        """Computes one step. `fetch` returns samples by id, in order; a rank fetches those of its bins, once.

        Raises, on all ranks, what `fetch` raised on any rank, NotStreamed if any doesn't hold the request's chunks, and SpecProblem if
        a sample doesn't fit into a bin (nothing has changed then) or if weights are not finite after the step.
        """
        plan, minibatches = self._minibatches(request, fetch)
        if not request.chunks:
            self.updates.discard()
        metrics, skipped, seconds = self.updates.run(request.step, request.steps, plan, minibatches)
        self._check_weights(
            f"after step {request.step}",
            "spec.trainer.optimizer.learningRate",
            "lower the learning rate, or use model.dtype BFloat16 or Float32, in a new job that resumes from the claim "
            "(checkpoint.resumeFrom)",
        )
        return TrainReport(request.step, metrics, len(minibatches), skipped, seconds)

    def probe(self, ids: Sequence[int]) -> list[float]:
        """Computes the log-probs, at temperature 1, of `ids[1:]`, each given the ids before it."""
        sample = token_sample(np.asarray(ids, np.int32), prompt_tokens=1)
        batch = build_batch([WeightedSegment(sample, 0.0, 0.0)], self.device, packed=packs(self.model))
        logprobs: list[float] = self.platform.read(frozen_logprobs(self.model, batch, platform=self.platform))
        return logprobs

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields whole weights in the spec's number format by their Hugging Face names; every rank must exhaust the iterator."""
        weights: Iterator[tuple[str, Tensor]] = full_weights(self.model, TORCH_DTYPES[self.spec.model.dtype])
        return weights

    def snapshot(self) -> dict[str, Tensor]:
        """Copies everything that `restore` brings back into host memory, for `checkpoint.sharded.write`.

        There is only one copy: it replaces the previous one, which must no longer be in use.
        """
        self._snapshot = sharded.snapshot(self._state(), self._host_mesh, self._snapshot, self.platform.host)
        return self._snapshot

    def restore(self, directory: Path, entries: Sequence[FileEntry]) -> None:
        """Restores weights, optimizer and RNG state from a snapshot written by any number of ranks. Chunks are discarded.

        With Float16 also the loss scale, or its initial value if the snapshot was made in another number format. Raises FilesDamaged
        unless all files are as `entries` describes them, and SpecProblem if the snapshot belongs to another model; nothing has changed
        then. Raises SpecProblem if it holds weights that are not finite. Overwrites the copy of `snapshot`.
        """
        assert self._snapshot is not None, "load the model first"
        with self.platform.together():
            saved = sharded.SavedTensors(directory, entries, self.rank, self.world_size)
        copies = dict(self._snapshot)
        if not saved.names >= {_SCALE, _GOOD_UPDATES}:
            copies.pop(_SCALE, None)
            copies.pop(_GOOD_UPDATES, None)
        # Only once all ranks have read and checked everything does any rank change its state.
        sharded.read(copies, saved)
        self.updates.discard()
        sharded.put_back(copies, self._state())
        for of_parameter in self.updates.optimizer.state.values():
            of_parameter["step"].copy_(copies["updates"])
        torch.set_rng_state(copies["rng"])
        self.updates.loss_scale = LossScale.from_dtype(self.spec.model.dtype)
        if _SCALE in copies:
            self.updates.loss_scale = LossScale(float(copies[_SCALE]), int(copies[_GOOD_UPDATES]))
        self._check_weights(
            f"in the checkpoint {directory}",
            "spec.checkpoint.resumeFrom",
            "resume from that of an earlier step (checkpoint.resumeFrom.step) in a new job",
        )

    def _state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, parameter in self.updates.parameters.items():
            of_parameter = self.updates.optimizer.state[parameter]
            state[f"model.{name}"] = parameter.detach()
            state[f"exp_avg.{name}"] = of_parameter["exp_avg"]
            state[f"exp_avg_sq.{name}"] = of_parameter["exp_avg_sq"]
            state["updates"] = of_parameter["step"].clone()
        state["rng"] = torch.get_rng_state()
        if (scale := self.updates.loss_scale).adapts:
            state[_SCALE] = torch.tensor(scale.value, dtype=torch.float64)
            state[_GOOD_UPDATES] = torch.tensor(scale.good_updates)
        return state

    def _check_weights(self, where: str, field: str, cure: str) -> None:
        """Raises SpecProblem, on all ranks, if weights are not finite in the number format that engines get. A collective."""
        if bad := not_finite(self.updates.parameters, TORCH_DTYPES[self.spec.model.dtype], self.platform):
            raise SpecProblem(
                Reason.WEIGHTS_NOT_FINITE,
                field,
                f"{len(bad)} of the {len(self.updates.parameters)} weights (the first is {bad[0]}) have values {where} that are not "
                f"finite in {self.spec.model.dtype}; {cure}",
            )

    def _minibatches(
        self, request: TrainRequest | ChunkRequest, fetch: Fetch
    ) -> tuple[StepPlan, list[list[SampleBatch]]]:
        """Plans the step or chunk, and builds this rank's batches of every minibatch.

        All ranks make the same plan; each fetches the samples of its own bins.
        """
        packed, streamed = packs(self.model), self.updates.streamed
        try:
            plan = plan_step(
                [sample.size for sample in request.samples],
                [sample.id.prompt for sample in request.samples],
                self.updates.algorithm,
                step=request.step,
                seed=self.spec.rounds.seed,
                denominator=request.denominator,
                max_tokens=self.spec.rollout.sampling.max_tokens,
                capacity=self.spec.trainer.max_tokens_per_bin,
                ranks=self.world_size,
                minibatches=self.spec.trainer.minibatches,
                packed=packed,
                mean_tokens=streamed.mean_tokens if request.chunks and streamed else None,
            )
        except SegmentTooLong as error:
            raise _bin_problem(error.tokens, error.capacity) from error
        mine = [ranks[self.rank] for ranks in plan.minibatches]
        needed = sorted({place.sample for bins in mine for members in bins for place in members})
        samples = self._fetch(request, fetch, needed)
        batches = [
            [
                [WeightedSegment(samples[i], request.samples[i].advantage, plan.weights[i], n) for i, n in members]
                for members in bins
            ]
            for bins in mine
        ]
        return plan, [[build_batch(batch, self.device, packed=packed) for batch in bins] for bins in batches]

    def _fetch(
        self, request: TrainRequest | ChunkRequest, fetch: Fetch, positions: Sequence[int]
    ) -> dict[int, GeneratedSample]:
        """Fetches samples by position; an error on any rank is raised on all ranks, so that none waits for the others.

        So is NotStreamed if a rank doesn't hold the chunks that the request builds on.
        """
        with self.platform.together():
            streamed = self.updates.streamed
            if request.chunks and (
                streamed is None or (streamed.step, streamed.chunks) != (request.step, request.chunks)
            ):
                present = f"{streamed.chunks} chunks of step {streamed.step}" if streamed else "no chunks"
                raise NotStreamed(
                    f"rank {self.rank} holds {present}, not the first {request.chunks} of step {request.step}"
                )
            samples = dict(zip(positions, fetch([request.samples[i].id for i in positions]), strict=True))
            for position, sample in samples.items():
                if sample.size != (planned := request.samples[position].size):
                    raise RuntimeError(f"the store has sample {sample.id} with {sample.size}, the step has {planned}")
        return samples


def set_deterministic(deterministic: bool, device: str) -> None:
    """Makes torch use kernels that give the same bits each time, or not.

    Torch warns about operations that have no such kernel. cuBLAS needs workspaces of a fixed size, a setting that it reads when it
    starts.
    """
    if deterministic and device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # Everything allocated here is written before it is read. Filling it first would be a pass over memory for every tensor, and
    # over 512 MiB for every publication, however small the model.
    torch.utils.deterministic.fill_uninitialized_memory = False


def _bin_problem(needed: int, capacity: int) -> SpecProblem:
    return SpecProblem(
        Reason.SPEC_INVALID,
        "spec.trainer.maxTokensPerBin",
        f"a sample may have {needed} tokens, but a bin holds {capacity}; raise it to the longest prompt plus response, at least "
        f"{needed}",
    )
