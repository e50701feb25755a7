"""A Ray of one node, for a local run."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import ray
import structlog

from longboat_runtime.agent.ray_command import WORKERS
from longboat_runtime.driver.main import RAY_NAMESPACE

log = structlog.get_logger()

# Bytes of Ray's shared memory: samples live in an actor, so this holds one publication's weights at a time, and little more.
SHARED_MEMORY = 2**30
# Ray gives its node 30 s to come up, which a busy machine may not manage at once.
ATTEMPTS = 3


def start_ray(resources: Mapping[str, float]) -> None:
    """Starts a node of its own with these resources and connects to it. Raises what Ray raises at the last attempt.

    SIGTERM stays with the caller, from whom Ray would take it. To be called in the main thread.
    """
    os.environ.update(WORKERS)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        _start(resources)
    finally:
        signal.signal(signal.SIGTERM, terminated)


def _start(resources: Mapping[str, float]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                namespace=RAY_NAMESPACE,
                num_cpus=0,
                resources=dict(resources),
                include_dashboard=False,
                object_store_memory=SHARED_MEMORY,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise
            log.warning("Ray did not start, once more", error=str(error))
        else:
            return
