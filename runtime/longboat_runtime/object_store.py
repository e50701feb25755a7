"""How large Ray's object store is in a pod, and how large a job needs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Ray keeps its store
# Ray refuses less than about 75 MB.
MINIMAL_OBJECT_STORE = 80_000_000
# What engines of one pod need of /dev/shm beside the store, besides buckets.
RESERVED_SHARED_MEMORY = 128 * 2**20
# In rollout pods, this part of /dev/shm (one third) is beside the store, for buckets on their way to engines' workers.
HANDOVER_SHARE = 3
# The most buckets of weights in a store at one time (`rollout.weight_rounds`), and one more: Ray writes to disk from 80 % on.
STORED_BUCKETS = 4
# The least room beside the store, in buckets, for files that engines' workers read.
HANDED_OVER_BUCKETS = 2


def object_store_size(shared_memory: int, *, engines: bool = False) -> int:
    """Returns the size of Ray's object store in bytes, given `shared_memory` bytes of /dev/shm.

    That is all but a reserve, which is larger where `engines` run, and at least Ray's minimum, even if /dev/shm is smaller. So a pod's
    template sizes the store by the size of /dev/shm.
    """
    reserved = max(RESERVED_SHARED_MEMORY, shared_memory // HANDOVER_SHARE if engines else 0)
    return max(shared_memory - reserved, MINIMAL_OBJECT_STORE)


def store_shortage(stores: Mapping[str, float], bucket: int) -> str | None:
    """Returns a warning if a node's store (bytes by the node's name) can't hold the buckets that travel at one time; None if all can."""
    needed = STORED_BUCKETS * bucket
    short = {name: store for name, store in stores.items() if store < needed}
    if not short:
        return None
    name = min(short, key=lambda name: short[name])
    return (
        f"{len(short)} Ray nodes, among them {name}, have less than the {needed} bytes of object store that buckets of {bucket} bytes need, "
        f"{short[name]:.0f}, so weights may go through the disk: enlarge /dev/shm, the volume `shm` of trainer and rollout pods in the "
        "runtime template"
    )


def object_store_need(bucket: int, responses: int) -> int:
    """Returns the bytes that a job needs in the object store of a node that has all of its roles.

    `bucket` is the size of its largest bucket of weights. Beside buckets there are the `responses` of one step on their way to the
    trainer, and Ray's minimum for everything small.
    """
    return STORED_BUCKETS * bucket + responses + MINIMAL_OBJECT_STORE
