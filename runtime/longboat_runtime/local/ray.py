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
from longboat_runtime.agent.ray_command import WORKERS
from longboat_runtime.agent.ray_node import bare_nodes
from longboat_runtime.driver.main import RAY_NAMESPACE
from longboat_runtime.model_config import tensor_shapes
from longboat_runtime.object_store import RESERVED_SHARED_MEMORY, object_store_need, object_store_size

log = structlog.get_logger()

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Ray keeps its store
_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}
# Ray gives its node 30 s to come up, which a busy machine may not manage at once.
ATTEMPTS = 3


def object_store(spec: RLJobSpec, free: int | None = None) -> tuple[int, str | None]:
    """Returns the bytes of a local run's object store, and a message for people if that is less than the job needs, else None.

    The store gets what the job needs, at most `object_store_size` of the `free` bytes of /dev/shm (by default those free now).
    """
    free = shutil.disk_usage(_SHARED_MEMORY).free if free is None else free
    batch = spec.rounds.prompts_per_round * spec.algorithm.group_size * spec.rollout.sampling.max_tokens
    need = object_store_need(published_bytes(Path(spec.model.path), spec.model.dtype), batch)
    size = min(need, object_store_size(free))
    if size == need:
        return size, None
    wanted = math.ceil((need + RESERVED_SHARED_MEMORY) / 2**30)
    return size, (
        f"{_SHARED_MEMORY} has {free / 2**30:.1f} GiB free. Two publications of this model's weights need {wanted} GiB there; what doesn't "
        f"fit goes through the disk, and every step waits for that. Enlarge it: `mount -o remount,size={wanted}G {_SHARED_MEMORY}` as "
        f"root, or `docker run --shm-size={wanted}g`."
    )


def published_bytes(model: Path, dtype: DType) -> int:
    """Returns the bytes of a publication of a Hugging Face directory's weights in `dtype`, from the headers of its safetensors files.

    0 if they can't be read: whoever loads the model says what is wrong with it.
    """
    return sum(map(math.prod, tensor_shapes(model).values())) * _BYTES[dtype]


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
