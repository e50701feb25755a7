"""The ranks' process group: gloo for the CPU, NCCL where there are GPUs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

# A collective that waits longer has lost a rank that didn't close its connections.
TIMEOUT = timedelta(minutes=30)
# The stores that groups meet at, for as long as this process serves them.
_served: list[dist.TCPStore] = []


def serve(host: str) -> str:
    """Serves a group's store from this process until `leave`. Returns its address, `host:port`, for `join`.

    The kernel picks the port as the store binds it: one looked up beforehand could be taken by then.
    """
    store = dist.TCPStore(host, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
    _served.append(store)
    return f"{host}:{store.port}"


def device_type() -> str:
    """Returns the type of device that this process trains on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def join(address: str, rank: int, world_size: int, copies: int = 1) -> tuple[DeviceMesh, DeviceMesh]:
    """Joins the group whose store is served at `address`. Returns the `mesh` of its devices and that of its hosts' memory."""
    backend = "cpu:gloo,cuda:nccl" if device_type() == "cuda" else "gloo"
    host, _, port = address.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    host_mesh = mesh("cpu", world_size, copies)
    return (mesh("cuda", world_size, copies) if device_type() == "cuda" else host_mesh), host_mesh


def mesh(device: str, world_size: int, copies: int) -> DeviceMesh:
    """Makes the mesh of a group's ranks: one dimension, over which the model is sharded, or (replicate, shard) for several copies of it.

    Ranks of a copy are neighbours, so copies are made of whole pods if their number divides that of the pods.
    """
    if copies == 1:
        return init_device_mesh(device, (world_size,))
    return init_device_mesh(device, (copies, world_size // copies), mesh_dim_names=("replicate", "shard"))


@contextmanager
def together() -> Iterator[None]:
    """Raises on all ranks, at the end of the block, what the lowest rank that failed raised in it, so that none waits for the others.

    A collective at the end; there must be none inside.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, on all ranks
        failure = _portable(error)
    failures: list[Exception | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    for failed in failures:
        if failed is not None:
            raise failed


def _portable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its text if it can't be pickled: its rank would fail before the collective."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - whatever keeps it from being sent
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def leave() -> None:
    """Ends the group of this process, and the stores that it serves."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _served.clear()
