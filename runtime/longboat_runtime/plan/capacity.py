"""What a runtime template gives the pods of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec

# The roles whose pods are Ray nodes, by the container that holds the node, and the list that it is in.
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
    """What pods have, in bytes, by role: `shared_memory` is the size of /dev/shm, `memory` the limit of the Ray node's container.

    A role without an entry isn't judged. `device` and `engine_device` are the memory of one GPU of trainers and engines, None if
    nobody says.
    """

    device: int | None = None
    shared_memory: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    engine_device: int | None = None


def from_runtime(runtime: RLRuntimeSpec, device: int | None) -> Capacity:
    """Returns what the pods of a runtime template have."""
    shared, memory = {}, {}
    for role, (containers, name) in CONTAINERS.items():
        specs = [template.template.get("spec") or {} for template in (runtime.common, getattr(runtime.roles, role))]
        shared[role] = in_bytes(_shared_memory(specs))
        limits = [item for spec in specs for item in _named(spec.get(containers), name)]
        for limit in (_at(item, "resources", "limits", "memory") for item in limits):
            if limit is not None:
                memory[role] = in_bytes(str(limit))
    return Capacity(device, shared, memory, device)


def _shared_memory(specs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the size limit of the volume `shm` by the last of `specs` that has one."""
    size = DEFAULT_SHARED_MEMORY
    for spec in specs:
        for volume in _named(spec.get("volumes"), "shm"):
            size = str(_at(volume, "emptyDir", "sizeLimit") or size)
    return size


def _named(items: Any, name: str) -> list[Mapping[str, Any]]:
    return [item for item in items or [] if isinstance(item, Mapping) and item.get("name") == name]


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
