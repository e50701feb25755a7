"""Reads how much memory a runtime template gives a job's pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.load import ApiError
from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec

# The roles whose pods are Ray nodes, with the list and the name of the container that runs the node.
CONTAINERS = {
    "driver": ("initContainers", "ray-head"),
    "rollout": ("containers", "rollout"),
    "trainer": ("containers", "trainer"),
    "reward": ("containers", "reward"),
}
# What the operator gives each role's /dev/shm where the template has no volume `shm`.
DEFAULT_SHARED_MEMORY = "256Mi"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memory and storage that a job has, in bytes.

    By role, `shared_memory` is the size of /dev/shm, `memory` the limit of the Ray node's container. A role without an entry isn't judged.
    `device` and `engine_device` are the memory of one GPU of trainers and engines, `claim` is the size of the checkpoint claim; None if
    unknown.
    """

    device: int | None = None
    shared_memory: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    engine_device: int | None = None
    claim: int | None = None


def from_runtime(runtime: RLRuntimeSpec) -> Capacity:
    """Returns the capacity of a runtime template's pods. Raises ApiError if a limit isn't a quantity of bytes."""
    shared, memory = {}, {}
    for role, (containers, name) in CONTAINERS.items():
        specs = [template.template.get("spec") or {} for template in (runtime.common, getattr(runtime.roles, role))]
        place = f"runtime spec.roles.{role}.template.spec"
        if (size := _shared_memory(specs)) is not None:
            shared[role] = memory_of(f"{place}.volumes[shm].emptyDir.sizeLimit", size)
        limits = [item for spec in specs for item in _named(spec.get(containers), name)]
        for limit in (_at(item, "resources", "limits", "memory") for item in limits):
            if limit is not None:
                memory[role] = memory_of(f"{place}.{containers}[{name}].resources.limits.memory", limit)
    return Capacity(shared_memory=shared, memory=memory)


def claim_size(checkpoint: CheckpointSpec) -> int | None:
    """Returns the size of the claim that the operator creates, in bytes; None if the job names a claim of its own."""
    return None if checkpoint.claim_name else in_bytes(checkpoint.volume.size)


def memory_of(field: str, text: Any) -> int:
    """Parses the value of `field` as bytes. Raises ApiError unless it is a positive quantity."""
    try:
        if (value := in_bytes(str(text))) > 0:
            return value
    except (ArithmeticError, ValueError):
        pass
    raise ApiError([f"{field}: {text} is no quantity of bytes; write it like 80Gi, or 80G for powers of ten"])


def _shared_memory(specs: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the size limit of the volume `shm`, merged as the operator does; None if it isn't an emptyDir or has no limit."""
    size: Any = DEFAULT_SHARED_MEMORY
    for spec in specs:
        for volume in _named(spec.get("volumes"), "shm"):
            directory = volume.get("emptyDir")
            if isinstance(directory, Mapping):
                size = directory.get("sizeLimit", size)
            elif len(volume) > 1:
                size = None
    return size


def _named(items: Any, name: str) -> list[Mapping[str, Any]]:
    return [item for item in items or [] if isinstance(item, Mapping) and item.get("name") == name]


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
