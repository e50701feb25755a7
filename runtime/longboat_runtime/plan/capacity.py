"""What a runtime template gives the pods of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec
from longboat_crds.quantities import in_bytes
from longboat_crds.runtime import RLRuntimeSpec
from longboat_crds.shared_memory import default_shared_memory

# The roles whose pods are Ray nodes, by the container that holds the node, and the list that it is in.
CONTAINERS = {
    "driver": ("initContainers", "ray-head"),
    "rollout": ("containers", "rollout"),
    "trainer": ("containers", "trainer"),
    "reward": ("containers", "reward"),
}


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


def from_runtime(runtime: RLRuntimeSpec, spec: RLJobSpec, device: int | None) -> Capacity:
    """Returns what the pods of a job have that are made from a runtime template."""
    shared, memory = {}, {}
    for role, (containers, name) in CONTAINERS.items():
        pods = [template.template.get("spec") or {} for template in (runtime.common, getattr(runtime.roles, role))]
        shared[role] = in_bytes(_shared_memory(pods) or default_shared_memory(Role(role), spec))
        limits = [item for pod in pods for item in _named(pod.get(containers), name)]
        for limit in (_at(item, "resources", "limits", "memory") for item in limits):
            if limit is not None:
                memory[role] = in_bytes(str(limit))
    return Capacity(device, shared, memory, device)


def _shared_memory(pods: Sequence[Mapping[str, Any]]) -> str:
    """Returns the size limit of the volume `shm` by the last of the specs of `pods` that has one; empty if none has."""
    size = ""
    for pod in pods:
        for volume in _named(pod.get("volumes"), "shm"):
            size = str(_at(volume, "emptyDir", "sizeLimit") or size)
    return size


def _named(items: Any, name: str) -> list[Mapping[str, Any]]:
    return [item for item in items or [] if isinstance(item, Mapping) and item.get("name") == name]


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
