"""How large Ray's object store is in a pod, and how large a job needs it. Pure."""

from __future__ import annotations

# Ray refuses less than about 75 MB.
MINIMAL_OBJECT_STORE = 80_000_000
# What engines of one pod need of /dev/shm beside the store.
RESERVED_SHARED_MEMORY = 128 * 2**20
# A response's bytes for each token: an id and a log-probability of 4 bytes each, and its text.
BYTES_PER_TOKEN = 16


def object_store_size(shared_memory: int) -> int:
    """Returns the size of Ray's object store in bytes, given `shared_memory` bytes of /dev/shm.

    That is all but what is reserved for engines, and at least Ray's minimum, even if /dev/shm is smaller. So a pod's template sizes the
    store, through which weights travel, by the size of /dev/shm.
    """
    return max(shared_memory - RESERVED_SHARED_MEMORY, MINIMAL_OBJECT_STORE)


def object_store_need(publication: int, batch_tokens: int) -> int:
    """Returns the bytes that a job needs in the object store of its fullest node, that of trainer rank 0.

    Two publications of `publication` bytes each (the model's parameters times the bytes of `spec.model.dtype`): a new one is put
    beside the last one, which is kept for engines that start late until it is replaced. Beside them the responses of one step, at
    most `batch_tokens` tokens, on their way to the trainer, and Ray's minimum for everything small.
    """
    return 2 * publication + batch_tokens * BYTES_PER_TOKEN + MINIMAL_OBJECT_STORE
