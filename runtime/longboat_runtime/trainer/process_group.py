"""The ranks' process group: gloo for the CPU, NCCL where there are GPUs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

# A collective that waits longer has lost a rank that didn't close its connections.
TIMEOUT = timedelta(minutes=30)


def free_address(host: str) -> str:
    """`host:port` with a port that is free now, for rank 0."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return f"{host}:{listener.getsockname()[1]}"


def device_type() -> str:
    """The type of device that this process trains on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def join(address: str, rank: int, world_size: int) -> tuple[DeviceMesh, DeviceMesh]:
    """Joins the group that meets at rank 0's `address`. Returns the mesh of devices and the mesh of the hosts' memory."""
    backend = "cpu:gloo,cuda:nccl" if device_type() == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://{address}", rank=rank, world_size=world_size, timeout=TIMEOUT)
    hosts = init_device_mesh("cpu", (world_size,))
    return (init_device_mesh("cuda", (world_size,)) if device_type() == "cuda" else hosts), hosts


@contextmanager
def together() -> Iterator[None]:
    """What any rank raises in the block is raised on all of them at its end, so that none waits for the others.

    A collective at the end; there must be none inside.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, on all ranks
        failure = error
    failures: list[Exception | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    for failed in failures:
        if failed is not None:
            raise failed


def leave() -> None:
    """Ends the group of this process."""
    if dist.is_initialized():
        dist.destroy_process_group()
