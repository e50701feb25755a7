"""How large Ray's object store is in a pod, and how large a job needs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# Ray refuses less than about 75 MB.
MINIMAL_OBJECT_STORE = 80_000_000
# What engines of one pod need of /dev/shm beside the store, besides buckets.
RESERVED_SHARED_MEMORY = 128 * 2**20
# One part in so many of the /dev/shm of a rollout pod is for buckets on the way to engines' workers, beside the store.
HANDOVER_SHARE = 3
# Buckets of weights in a store at one time (`rollout.weight_rounds`), and the room of one more: Ray writes to disk at 80 %.
STORED_BUCKETS = 4
# Buckets beside the store, at least, as files for engines' workers.
HANDED_OVER_BUCKETS = 2


def object_store_size(shared_memory: int, *, engines: bool = False) -> int:
    """Returns the size of Ray's object store in bytes, given `shared_memory` bytes of /dev/shm.

    That is all but what is reserved beside it, more where `engines` run, and at least Ray's minimum, even if /dev/shm is smaller. So a
    pod's template sizes the store, through which weights travel, by the size of /dev/shm.
    """
    reserved = max(RESERVED_SHARED_MEMORY, shared_memory // HANDOVER_SHARE if engines else 0)
    return max(shared_memory - reserved, MINIMAL_OBJECT_STORE)


def store_shortage(stores: Mapping[str, float], bucket: int) -> str | None:
    """Returns the warning if a node's store (bytes by the node's name) can't hold what travels of a publication; None if all can."""
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
