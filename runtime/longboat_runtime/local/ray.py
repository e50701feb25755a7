"""A single-node Ray, for a local run."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import ray
import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_crds.shared_memory import response_bytes
from longboat_runtime.agent.ray_command import WORKERS
from longboat_runtime.agent.ray_node import bare_nodes
from longboat_runtime.driver.main import RAY_NAMESPACE
from longboat_runtime.model_config import tensor_shapes
from longboat_runtime.object_store import (
    HANDED_OVER_BUCKETS,
    RESERVED_SHARED_MEMORY,
    SHARED_MEMORY,
    object_store_need,
    object_store_size,
)
from longboat_runtime.weights.layout import largest_bucket

log = structlog.get_logger()

_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}
# Ray gives its node 30 s to come up, which a busy machine may not manage at once.
ATTEMPTS = 3


def object_store(spec: RLJobSpec, free: int | None = None) -> tuple[int, str | None]:
    """Returns the bytes of a local run's object store, and a message for people if that is less than the job needs, else None.

    The store gets what the job needs, at most `object_store_size` of the `free` bytes of /dev/shm (by default those free now).
    """
    free = shutil.disk_usage(SHARED_MEMORY).free if free is None else free
    bucket = bucket_bytes(Path(spec.model.path), spec.model.dtype, spec.trainer.replicas)
    need = object_store_need(bucket, response_bytes(spec))
    files = max(HANDED_OVER_BUCKETS, spec.rollout.engines_per_pod * spec.rollout.replicas) * bucket
    size = min(need, max(object_store_size(free) - files, object_store_size(0)))
    if size == need:
        return size, None
    wanted = math.ceil((need + files + RESERVED_SHARED_MEMORY) / 2**30)
    return size, (
        f"{SHARED_MEMORY} has {free / 2**30:.1f} GiB free. The weights of this model, which are published in pieces, and the responses of a "
        f"step need {wanted} GiB there; what doesn't fit goes through the disk, and every step waits for that. Enlarge it: "
        f"`mount -o remount,size={wanted}G {SHARED_MEMORY}` as root, or `docker run --shm-size={wanted}g`."
    )


def bucket_bytes(model: Path, dtype: DType, senders: int) -> int:
    """Returns the bytes of the largest bucket of a publication of a Hugging Face directory's weights in `dtype`.

    From the headers of its safetensors files. 0 if they can't be read: whoever loads the model says what is wrong with it.
    """
    return largest_bucket(tensor_shapes(model), _BYTES[dtype], senders)


def start_ray(resources: Mapping[str, float], object_store: int) -> None:
    """Starts a node of its own with these resources and connects to it. Raises what Ray raises at the last attempt.

    `object_store` is the size of Ray's shared memory in bytes.
    The caller keeps its handling of SIGTERM, which Ray would replace. To be called in the main thread.
    """
    os.environ.update(WORKERS)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        _start(resources, object_store)
    finally:
        signal.signal(signal.SIGTERM, terminated)


def _start(resources: Mapping[str, float], object_store: int) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with bare_nodes():
                ray.init(
                    address="local",
                    namespace=RAY_NAMESPACE,
                    num_cpus=0,
                    resources=dict(resources),
                    include_dashboard=False,
                    object_store_memory=object_store,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        except Exception as error:
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise
            log.warning("Ray did not start, trying again", error=str(error))
        else:
            return
