"""The trainer's side: full tensors in Hugging Face names become a publication."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import structlog
import torch

from longboat_runtime.weights.bucket import BUCKET_BYTES, buckets
from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.payload import Packed, Stored, StoredBucket
from longboat_runtime.weights.publication import WeightPublication

log = structlog.get_logger()


def pack(named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int = BUCKET_BYTES) -> Packed:
    """Packs full tensors into buckets in this process's memory (a second copy of the model)."""
    contents = tuple(buckets(named_tensors, bucket_bytes))
    return Packed(contents, checksum_of(digest for bucket in contents for digest in bucket.digests()))


def summed(named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int = BUCKET_BYTES) -> str:
    """Computes the checksum that a publication of these full tensors has; holds one bucket at a time."""
    return checksum_of(digest for bucket in buckets(named_tensors, bucket_bytes) for digest in bucket.digests())


def publish(
    named_tensors: Iterable[tuple[str, torch.Tensor]],
    version: int,
    probe_ids: Sequence[int],
    probe_logprobs: Sequence[float],
    bucket_bytes: int = BUCKET_BYTES,
) -> WeightPublication:
    """Puts full tensors into Ray's object store, bucket by bucket, and returns what the engines need to fetch and check them.

    `named_tensors` are in Hugging Face names and the dtype of `spec.model.dtype`, on any device; tied tensors come once.
    `probe_logprobs[i]` is the log-prob of `probe_ids[i + 1]` given those before it, at temperature 1, in float32, from the
    same weights. The calling process (trainer rank 0) owns the objects: they are gone when it ends.
    """
    import ray

    if len(probe_logprobs) != len(probe_ids) - 1:
        raise ValueError(
            f"{len(probe_ids)} probe tokens need {len(probe_ids) - 1} log-probs, not {len(probe_logprobs)}"
        )
    contents, digests = [], []
    nbytes = 0
    for bucket in buckets(named_tensors, bucket_bytes):
        digests += bucket.digests()
        contents.append(StoredBucket(bucket.entries, ray.put(bucket.data)))
        nbytes += len(bucket.data)
    _check_room(nbytes)
    return WeightPublication(
        version=version,
        payload=Stored(tuple(contents), nbytes, checksum_of(digests)),
        probe_ids=tuple(int(token) for token in probe_ids),
        probe_logprobs=tuple(float(logprob) for logprob in probe_logprobs),
    )


@functools.cache
def _check_room(nbytes: int) -> None:
    """Warns once if the object store of this node can't hold two publications of `nbytes` each."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    stores = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    if 2 * nbytes > sum(stores):
        log.warning(
            "two publications don't fit into Ray's object store, so weights go through the disk: enlarge /dev/shm, "
            "the volume `shm` of trainer and rollout pods in the runtime template",
            publication=nbytes,
            store=int(sum(stores)),
        )
