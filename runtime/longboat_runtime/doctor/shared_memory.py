"""Checks shared memory, which holds Ray's object store and what engines and NCCL keep beside it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from longboat_graders.cgroup import memory_limit
from longboat_runtime.doctor.finding import Finding, note, ok, size, skipped, wrong
from longboat_runtime.doctor.place import Place
from longboat_runtime.object_store import (
    MINIMAL_OBJECT_STORE,
    RESERVED_SHARED_MEMORY,
    SHARED_MEMORY,
    object_store_size,
)

CHECK = "shared memory"
LEAST = MINIMAL_OBJECT_STORE + RESERVED_SHARED_MEMORY


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Holds the bytes of /dev/shm, and the container's memory limit, None without one."""

    total: int
    free: int
    limit: int | None = None


def judge_shared_memory(memory: SharedMemory, place: Place) -> Finding:
    """Judges /dev/shm by what every Ray node needs of it: Ray's least store, and what is reserved beside the store. Pure.

    `longboat plan` says what a job's weights and responses take.
    """
    if place.container in {"graders", "environment", "other"}:
        return skipped(CHECK, "no Ray node runs in this container")
    if memory.total < LEAST:
        least = f"{-(-LEAST // 2**20)}Mi"
        cure = f"raise emptyDir.sizeLimit of the runtime template's volume shm, to what `longboat plan` says, {least} at least"
        return wrong(CHECK, f"{SHARED_MEMORY} has {size(memory.total)}, and a Ray node needs {size(LEAST)}", cure)
    store = object_store_size(memory.total, engines=place.container == "rollout")
    text = (
        f"{SHARED_MEMORY} has {size(memory.total)}, {size(store)} of it for Ray's store; {size(memory.free)} are free"
    )
    if memory.limit is not None and memory.total > memory.limit:
        cure = "raise the container's memory limit above the volume's sizeLimit, or lower that"
        return note(CHECK, f"{text}; it counts as memory, of which the container may use {size(memory.limit)}", cure)
    if memory.free < RESERVED_SHARED_MEMORY:
        cure = "raise emptyDir.sizeLimit of the runtime template's volume shm: a full store continues on disk, which is slow"
        return note(CHECK, text, cure)
    return ok(CHECK, text)


def own_shared_memory() -> SharedMemory:
    """Reads the size of /dev/shm and the container's memory limit."""
    usage = shutil.disk_usage(SHARED_MEMORY)
    return SharedMemory(usage.total, usage.free, memory_limit())
