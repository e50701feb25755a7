"""Computes a job's needs of devices, shared memory, host memory and its claim from the figures of one trainer rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from longboat_crds.checkpoint import KEPT_EXPORTS
from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import in_bytes
from longboat_crds.rollout import PublicationMode
from longboat_crds.shared_memory import response_bytes
from longboat_runtime.checkpoint.export import FILE_BYTES
from longboat_runtime.object_store import (
    HANDED_OVER_BUCKETS,
    MINIMAL_OBJECT_STORE,
    RESERVED_SHARED_MEMORY,
    STORED_BUCKETS,
)
from longboat_runtime.plan.capacity import CONTAINERS, Capacity
from longboat_runtime.plan.figures import Figures
from longboat_runtime.rollout.engine import RESERVE, TORCH_NAMES, kv_token_bytes
from longboat_runtime.weights.layout import bucket_limit, sender_ranks

MIB, GIB = 2**20, 2**30
# Assumed, until it is measured: memory of a device beyond what torch's allocator hands out. That is CUDA's context, NCCL's buffers,
# and fragments that the allocator has reserved but can't use.
DEVICE_OVERHEAD = 3 * GIB
# Assumed likewise: host memory of a process with torch, CUDA and Ray, before it holds anything.
HOST_OVERHEAD = 4 * GIB


class Resource(StrEnum):
    """The kinds of limits."""

    BIN = "bin"
    DEVICE = "device"
    KV_CACHE = "KV cache"
    SHARED_MEMORY = "/dev/shm"  # noqa: S108
    HOST_MEMORY = "host memory"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes (for a bin, tokens) of a resource that each pod of a role needs, the sum of `parts`, and those `available`.

    `available` is None if unknown; then everything fits. Of `needed`, `assumed` bytes are an assumption.
    """

    resource: Resource
    role: str
    needed: int
    available: int | None
    parts: Mapping[str, int] = field(default_factory=dict)
    assumed: int = 0

    @property
    def fits(self) -> bool:
        """Returns whether enough is available, as far as is known."""
        return self.available is None or self.needed <= self.available

    @property
    def exceeds(self) -> bool:
        """Returns whether too little is available even without the assumed bytes."""
        return self.available is not None and self.needed - self.assumed > self.available


def needs(spec: RLJobSpec, model: Mapping[str, Any], figures: Figures, longest: int, capacity: Capacity) -> list[Need]:
    """Returns all needs of a job; `model` is config.json by standard names, `longest` the most tokens of a sequence."""
    return [
        bin_need(spec),
        device_need(spec, figures, capacity),
        kv_need(spec, model, figures, longest, capacity),
        *(shared_memory_need(spec, figures, role, capacity) for role in CONTAINERS),
        *(host_need(spec, figures, role, capacity) for role in ("rollout", "trainer")),
        claim_need(spec, figures, capacity),
    ]


def bin_need(spec: RLJobSpec) -> Need:
    """Returns the tokens that a bin has to hold: the longest sample.

    Without model.maxLength that is the longest response and one token of its prompt. The API refuses smaller bins.
    """
    longest = max(spec.rollout.sampling.max_tokens + 1, spec.model.max_length or 0)
    return Need(Resource.BIN, "trainer", longest, spec.trainer.max_tokens_per_bin)


def device_need(spec: RLJobSpec, figures: Figures, capacity: Capacity) -> Need:
    """Returns the memory of a trainer rank's device: the highest peak of any phase, and DEVICE_OVERHEAD.

    Broadcasts go through a bucket on the device of a rank that sends, which it keeps.
    """
    peak = figures.peak
    accumulated = figures.phases["accumulate"]
    base = figures.weights + figures.reference + figures.states
    parts = {
        "weights": figures.weights,
        "KL reference": figures.reference,
        "optimizer states": figures.states,
        "bins, at their peak": accumulated.peak - base,
        "overhead (assumed)": DEVICE_OVERHEAD,
    }
    if peak > accumulated.peak:
        parts["other phases"] = peak - accumulated.peak
    if spec.rollout.publication is PublicationMode.DIRECT:
        parts["bucket to broadcast"] = bucket_bytes(spec, figures)
    return Need(Resource.DEVICE, "trainer", sum(parts.values()), capacity.device, _present(parts), DEVICE_OVERHEAD)


def engine_weights(figures: Figures, model: Mapping[str, Any], tensor_parallel: int) -> int:
    """Returns the bytes of weights on each of `tensor_parallel` ranks of an engine; see `rollout.engine.rank_weight_bytes`."""
    kv_heads = int(model.get("num_key_value_heads") or model.get("num_attention_heads", 1))
    matrices = figures.published - figures.vectors - figures.key_values
    return figures.vectors + figures.key_values // min(tensor_parallel, kv_heads) + matrices // tensor_parallel


def kv_room(spec: RLJobSpec, model: Mapping[str, Any], figures: Figures, capacity: Capacity) -> int | None:
    """Returns the bytes of KV cache that one rank of an engine has; None if neither the spec nor the device says.

    That is what weights and a reserve of a tenth leave of `rollout.deviceMemory`, or of the device, but at most `rollout.kvCache`.
    """
    rollout = spec.rollout
    budget = capacity.engine_device
    if rollout.device_memory is not None:
        budget = min(in_bytes(rollout.device_memory), budget or in_bytes(rollout.device_memory))
    free = None
    if budget is not None:
        free = budget - budget // RESERVE - engine_weights(figures, model, rollout.tensor_parallel)
    if rollout.kv_cache is None:
        return free
    wanted = in_bytes(rollout.kv_cache)
    return wanted if free is None else min(wanted, free)


def kv_need(spec: RLJobSpec, model: Mapping[str, Any], figures: Figures, longest: int, capacity: Capacity) -> Need:
    """Returns the KV cache that one rank of an engine needs: one sequence of `longest` tokens, or `rollout.kvCache` if larger."""
    spec_bytes = in_bytes(spec.rollout.kv_cache) if spec.rollout.kv_cache else 0
    token = kv_token_bytes(model, TORCH_NAMES[spec.model.dtype], spec.rollout.tensor_parallel)
    weights = engine_weights(figures, model, spec.rollout.tensor_parallel)
    parts = {"weights of a rank": weights, "one token": token}
    return Need(
        Resource.KV_CACHE, "rollout", max(token * longest, spec_bytes), kv_room(spec, model, figures, capacity), parts
    )


def senders(spec: RLJobSpec) -> list[int]:
    """Returns the ranks that send publications: one in each trainer pod, which keeps a copy of its part."""
    return sender_ranks(spec.trainer.ranks, spec.trainer.devices_per_pod)


def bucket_bytes(spec: RLJobSpec, figures: Figures) -> int:
    """Returns the bytes of the largest bucket of a publication."""
    return max(bucket_limit(figures.published, len(senders(spec))), figures.largest)


def shared_memory_need(spec: RLJobSpec, figures: Figures, role: str, capacity: Capacity) -> Need:
    """Returns the /dev/shm of each pod of a role: its Ray object store, and what engines need beside it.

    The stores of trainers and engines hold buckets of a publication on their way, those of trainers and the driver a step's responses.
    Engines also get each bucket as a file.
    """
    parts = {"Ray's least": MINIMAL_OBJECT_STORE, "beside the store": RESERVED_SHARED_MEMORY}
    if role in ("rollout", "trainer"):
        parts["weights on their way"] = STORED_BUCKETS * bucket_bytes(spec, figures)
    if role in ("driver", "trainer"):
        parts["responses of a step"] = response_bytes(spec)
    if role == "rollout":
        parts["weights as files"] = max(HANDED_OVER_BUCKETS, spec.rollout.engines_per_pod) * bucket_bytes(spec, figures)
    return Need(Resource.SHARED_MEMORY, role, sum(parts.values()), capacity.shared_memory.get(role), parts)


def host_need(spec: RLJobSpec, figures: Figures, role: str, capacity: Capacity) -> Need:
    """Returns the memory that a role's container needs, /dev/shm included: files there count against its limit."""
    processes = spec.trainer.devices_per_pod if role == "trainer" else spec.rollout.devices_per_pod
    assumed = HOST_OVERHEAD * processes
    parts = {
        Resource.SHARED_MEMORY.value: shared_memory_need(spec, figures, role, capacity).needed,
        "processes (assumed)": assumed,
    }
    if role == "trainer":
        parts["snapshot"] = figures.snapshot * processes
        parts["pinned activations"] = figures.pinned * processes
        parts["published weights"] = figures.published // len(senders(spec)) + bucket_bytes(spec, figures)
        if spec.checkpoint.export or spec.checkpoint.export_every_steps:
            parts["export"] = min(figures.published, FILE_BYTES + 2 * figures.largest)
    return Need(Resource.HOST_MEMORY, role, sum(parts.values()), capacity.memory.get(role), _present(parts), assumed)


def claim_need(spec: RLJobSpec, figures: Figures, capacity: Capacity) -> Need:
    """Returns the size that the checkpoint claim needs: all that is kept, and one more of each, written before the oldest is removed.

    A job of few steps may never have so many checkpoints: those that only suspensions and drains would add are assumed.
    """
    checkpoint = spec.checkpoint
    surplus = max(0, checkpoint.keep + 1 - math.ceil(spec.rounds.steps / checkpoint.every_steps))
    parts = {f"{checkpoint.keep + 1} checkpoints": (checkpoint.keep + 1) * checkpoint_bytes(spec, figures)}
    if checkpoint.export_every_steps:
        count = (checkpoint.keep_exports or KEPT_EXPORTS) + 1
        parts[f"{count} exports"] = count * figures.published
    if checkpoint.export:
        parts["the last export"] = figures.published
    assumed = surplus * checkpoint_bytes(spec, figures)
    return Need(Resource.CLAIM, "trainer", sum(parts.values()), capacity.claim, parts, assumed)


def checkpoint_bytes(spec: RLJobSpec, figures: Figures) -> int:
    """Returns the bytes of one checkpoint: weights and both moments, in float32, of one copy of the model."""
    return figures.snapshot * figures.ranks // spec.trainer.replicate_degree


def links(spec: RLJobSpec, figures: Figures) -> dict[str, int]:
    """Returns the bytes that each link carries, by their purpose.

    Rule: collectives go round a ring, as NCCL's do for large messages. So each rank receives all that is gathered from the one before it,
    and if several pods hold a copy of the model, the first rank of each pod receives it from another pod; gradients likewise. Sums over
    `n` copies take 2 (n - 1) / n times what is summed, for each rank of a pod.
    """
    trainer, parts = spec.trainer, {}
    gathered, scattered, copies = round(figures.gathered), round(figures.scattered), trainer.replicate_degree
    if trainer.devices_per_pod > 1:
        parts["within a pod: received by each rank in a bin (weights)"] = gathered
        parts["within a pod: sent by each rank in a bin (gradients)"] = scattered
    if trainer.replicas > copies:
        parts["between pods: received by each pod in a bin (weights)"] = gathered
        parts["between pods: sent by each pod in a bin (gradients)"] = scattered
    if copies > 1:
        summed = round(figures.reduced * 2 * (copies - 1) / copies)
        parts["between copies: sent by each pod in a bin (gradients)"] = summed * trainer.devices_per_pod
    parts["published to each rollout pod"] = figures.published
    parts["written to the claim by each rank in a checkpoint"] = figures.snapshot // copies
    return parts


def _present(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in parts.items() if value}
