"""Sharded tensors in files, by torch's distributed checkpoint: written on some number of ranks, read on any other."""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.futures import Future

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import files
from longboat_runtime.checkpoint.manifest import FileEntry

# The file that says which tensors are where in the others. All ranks read it; the first rank writes it.
_PLACES = ".metadata"


@torch.no_grad()
def snapshot(
    tensors: Mapping[str, Tensor],
    host_mesh: DeviceMesh,
    earlier: Mapping[str, Tensor] | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """Returns copies of this rank's parts in host memory, sharded as before: the originals may change while these are written.

    They overwrite an `earlier` snapshot of the same tensors, if there is one: fresh memory, which the kernel has to clear
    first, would take more than twice as long. `device` is where host memory is allocated.
    """
    earlier = earlier or {name: _empty(tensor, host_mesh, device) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        _local(earlier[name]).copy_(_local(tensor))
    return dict(earlier)


@torch.no_grad()
def put_back(copies: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies this rank's parts from host memory into the tensors of the same names."""
    for name, copy in copies.items():
        _local(tensors[name]).copy_(_local(copy))


def write(
    tensors: Mapping[str, Tensor], directory: Path, group: dist.ProcessGroup | None = None
) -> tuple[FileEntry, ...]:
    """Writes all ranks' parts into `directory` and makes them durable. Returns descriptions of the files that this rank has written.

    A collective of `group` (its tensors on the CPU). If any rank couldn't write, raises OSError on all ranks, or RuntimeError if torch
    hides why (see `_no_space`).
    """
    writer = _Writer(directory)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _disk_error(error) or _no_space(tensors, directory) or RuntimeError(str(error)) from error
    return tuple(sorted(writer.written, key=lambda entry: entry.path))


def read(tensors: Mapping[str, Tensor], saved: SavedTensors, group: dist.ProcessGroup | None = None) -> None:
    """Fills `tensors` in place, and checks all files. A collective.

    Raises, on all ranks, FilesDamaged if a file isn't as it was written, OSError if one can't be read, and SpecProblem if they lack one
    of these tensors or have it in another shape. `tensors` may be in part overwritten then.
    """
    try:
        dcp.load(dict(tensors), storage_reader=saved, process_group=group)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        damages = (
            files.FilesDamaged(f"{saved.path}: {cause} (rank {rank})")
            for rank, (cause, _) in error.failures.items()
            if isinstance(cause, files.FilesDamaged)
        )
        raise (
            next(damages, None)
            or _disk_error(error)
            or SpecProblem(
                Reason.CHECKPOINT_MISMATCH,
                "spec.model.path",
                f"the checkpoint {saved.path} belongs to another model ({causes[0]}); resume with the model it was made with, or "
                "start a new job",
            )
        ) from error


class SavedTensors(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads tensors that ranks have written into a directory, and checks what it reads.

    Each file is read once and whole by one rank (see `files_of_rank`), which takes the tensors that it needs on the way. From other files a
    rank reads only the tensors that it needs; they are valid only if each file's own rank finds it undamaged. Every rank reads and checks
    the small file that says where tensors are.
    """

    def __init__(self, directory: Path, entries: Sequence[FileEntry], rank: int, ranks: int) -> None:
        """Reads which tensors there are. Raises FilesDamaged, OSError, or SpecProblem if this torch can't decode the file."""
        super().__init__(directory)
        self._directory = directory
        self._entries = {entry.path: entry for entry in entries}
        if _PLACES not in self._entries:
            raise files.FilesDamaged(f"{_PLACES} is not in the manifest")
        self._own = files_of_rank(self._entries.keys() - {_PLACES}, rank, ranks)
        content = files.read(directory, self._entries[_PLACES])
        try:
            # This is torch's own format, and its checksum was just checked.
            self._metadata: Metadata = pickle.loads(content)  # noqa: S301
        except Exception as error:
            raise SpecProblem(
                Reason.CHECKPOINT_MISMATCH,
                "spec.runtimeRef",
                f"the checkpoint {directory} is undamaged, but torch {torch.__version__} can't read its {_PLACES} ({error!r}); resume with "
                "the trainer's image that it was made with, or start a new job",
            ) from error

    @property
    def names(self) -> set[str]:
        """Returns the names of the tensors."""
        return set(self._metadata.state_dict_metadata)

    def read_metadata(self) -> Metadata:
        """Returns where each tensor is; see dcp.FileSystemReader. The base class would read it again, unchecked."""
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads this rank's files whole, and what it needs of the others; see dcp.FileSystemReader. Raises FilesDamaged."""
        items: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            items.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        if unlisted := items.keys() - self._entries.keys():
            raise files.FilesDamaged(f"{min(unlisted)} is not in the manifest")
        for path in self._own:
            self._read_whole(self._entries[path], items.pop(path, []), planner)
        others = [*itertools.chain.from_iterable(items.values())]
        return super().read_data(dataclasses.replace(plan, items=others), planner)

    def _read_whole(self, entry: FileEntry, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
        """Reads a file once, from its beginning to its end, and takes these items from it. Raises FilesDamaged.

        Each tensor is in memory as bytes and as a tensor while it is taken.
        """
        by_place: dict[tuple[int, int], list[ReadItem]] = {}
        for item in items:
            place = self.storage_data[item.storage_index]
            by_place.setdefault((place.offset, place.length), []).append(item)
        total, failure = xxhash.xxh3_128(), None
        with (self._directory / entry.path).open("rb") as file:
            for (offset, length), members in sorted(by_place.items(), key=lambda each: each[0]):
                files.add(total, file, offset - file.tell())
                content = file.read(length)
                total.update(content)
                try:
                    _take(members, content, planner)
                except Exception as error:  # noqa: BLE001 - raised below, unless the file is damaged
                    failure = failure or error
            files.add(total, file)
            size = file.tell()
        files.check(entry, size, total.hexdigest())
        if failure:
            raise failure


def files_of_rank(paths: Iterable[str], rank: int, ranks: int) -> list[str]:
    """Returns the files that a rank reads whole and checks: each file is one rank's. Pure.

    Files have the number of the rank that wrote them in their names. On as many ranks each gets its own; on others each gets neighbours,
    which have most of what it needs.
    """
    ordered = sorted(paths, key=lambda path: ([int(number) for number in re.findall(r"\d+", path)], path))
    return [path for index, path in enumerate(ordered) if index * ranks // len(ordered) == rank]


class _Writer(dcp.FileSystemWriter):  # type: ignore[misc]
    """Makes this rank's files and their names durable, and describes them in `written`. Torch raises errors from here on all ranks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync_files=True)
        self.written: list[FileEntry] = []

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the tensors; see dcp.FileSystemWriter. Raises OSError."""
        results = super().write_data(plan, planner)
        self._complete({result.storage_data.relative_path for result in results.wait()})
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes where the tensors are, on the first rank; see dcp.FileSystemWriter. Raises OSError."""
        super().finish(metadata, results)
        self._complete([_PLACES])

    def _complete(self, paths: Iterable[str]) -> None:
        files.fsync_directory(self.path)
        self.written += files.describe(self.path, paths)


def _take(items: Iterable[ReadItem], content: bytes, planner: LoadPlanner) -> None:
    """Takes items from the bytes of the tensor that they are parts of."""
    tensor: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for item in items:
        target = planner.resolve_tensor(item).detach()
        target.copy_(narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)


def _empty(tensor: Tensor, host_mesh: DeviceMesh, device: torch.device) -> Tensor:
    """Allocates host memory for a copy of this rank's part of `tensor`."""
    local = torch.empty_like(_local(tensor), device=device)
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local, host_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
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
