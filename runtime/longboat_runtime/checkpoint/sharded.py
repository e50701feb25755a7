"""Sharded tensors in files, by torch's distributed checkpoint: written on some number of ranks, read on any other."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.files import fsync_directory


@torch.no_grad()
def snapshot(
    tensors: Mapping[str, Tensor],
    hosts: DeviceMesh,
    earlier: Mapping[str, Tensor] | None = None,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Returns copies of this rank's parts in host memory, sharded as before: the originals may change while these are written.

    They overwrite an `earlier` snapshot of the same tensors, if there is one: fresh memory, which the kernel has to clear
    first, would take more than twice as long. `device` is where host memory is allocated, by default the CPU.
    """
    device = device or torch.device("cpu")
    earlier = earlier or {name: _empty(tensor, hosts, device) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        _local(earlier[name]).copy_(_local(tensor))
    return dict(earlier)


def write(tensors: Mapping[str, Tensor], directory: Path, group: dist.ProcessGroup | None = None) -> None:
    """Writes all ranks' parts into `directory` and makes them durable. A collective of `group` (its tensors on the CPU).

    If any rank couldn't write, raises OSError on all ranks, or RuntimeError if torch hides why (see `_no_space`).
    """
    try:
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(directory, sync_files=True), process_group=group)
    except CheckpointException as error:
        raise _disk_error(error) or _no_space(tensors, directory) or RuntimeError(str(error)) from error
    fsync_directory(directory)


def read(tensors: Mapping[str, Tensor], directory: Path, group: dist.ProcessGroup | None = None) -> None:
    """Fills `tensors` in place from `directory`. A collective.

    Raises OSError if files can't be read, SpecProblem if they lack one of these or have it in another shape.
    """
    try:
        dcp.load(dict(tensors), storage_reader=dcp.FileSystemReader(directory), process_group=group)
    except CheckpointException as error:
        causes = [str(cause) for cause, _ in error.failures.values()]
        raise _disk_error(error) or SpecProblem(
            Reason.CHECKPOINT_MISMATCH,
            "spec.model.path",
            f"the checkpoint {directory} belongs to another model ({causes[0]}); resume with the model it was made with, or "
            "start a new job",
        ) from error


def names(directory: Path) -> set[str]:
    """Reads the names of the tensors in `directory`. Raises OSError if the file that has them can't be opened."""
    return set(dcp.FileSystemReader(directory).read_metadata().state_dict_metadata)


def _empty(tensor: Tensor, hosts: DeviceMesh, device: torch.device) -> Tensor:
    """Allocates host memory for a copy of this rank's part of `tensor`."""
    local = torch.empty_like(_local(tensor), device=device)
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local, hosts, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of the tensor: all of it, unless it is a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _disk_error(error: CheckpointException) -> OSError | None:
    """Returns an OSError that torch reports of some rank; None if it reports none: it hides some (see `_no_space`)."""
    return next((cause for cause, _ in error.failures.values() if isinstance(cause, OSError)), None)


def _no_space(tensors: Mapping[str, Tensor], directory: Path) -> OSError | None:
    """Returns the OSError of a full volume if less is free than this rank's parts need, else None: torch hides why a write failed."""
    if shutil.disk_usage(directory).free >= sum(_local(tensor).nbytes for tensor in tensors.values()):
        return None
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
