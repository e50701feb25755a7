"""Counts, operator by operator, the memory that a trace would hold and the bytes that its collectives would move."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The device of tensors that stand for host memory.
HOST = torch.device("meta")
# Namespaces of what is dispatched, but computes nothing.
_NOT_COMPUTED = ("prim", "profiler")
# The CUDA caching allocator hands out multiples of this many bytes.
BLOCK = 512


@dataclass(slots=True)
class _Storage:
    reference: StorageWeakRef
    nbytes: int
    counts: bool
    host: bool


class Ledger(TorchDispatchMode):
    """Follows, while it is entered, the storages of fake tensors until the last tensor releases them; those on HOST are host memory.

    In bytes: `allocated` and `host` are held now, as of the last `settle`; `peak` is the most that devices held at one time since
    `restart`. `moved` is what this rank received in gathers, sent in scatters, and had summed over copies of the model. `real` is the
    largest storage of a tensor that isn't fake. `operators` counts all that were dispatched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.host = self.peak = self.real = self.operators = 0
        self.moved = (0, 0, 0)
        self._storages: dict[int, _Storage] = {}
        self._counts = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets torch compile functions that are called while this is entered; what they compile to is counted as it runs."""
        return True

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Never counts storages that are made in the block: a device would have no memory for them."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def restart(self) -> int:
        """Starts a new peak, from what is held now, and returns that."""
        self.settle()
        self.peak = self.allocated
        return self.allocated

    def collect(self) -> None:
        """Settles once Python has collected its garbage."""
        gc.collect()
        self.settle()

    def settle(self) -> None:
        """Counts all live storages again: they end, and FSDP resizes them, without an operator."""
        strong = torch.UntypedStorage._new_with_weak_ptr
        allocated = host = 0
        for address, entry in list(self._storages.items()):
            storage = strong(entry.reference.cdata)
            if storage is None:
                del self._storages[address]
                continue
            entry.nbytes = storage.nbytes()
            if entry.host:
                host += entry.nbytes
            elif entry.counts:
                allocated += rounded(entry.nbytes)
        self.allocated, self.host, self.peak = allocated, host, max(self.peak, allocated)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace in _NOT_COMPUTED:
            return result
        self.operators += 1
        for tensor in _tensors((args, kwargs, result)):
            self._touch(tensor)
        if func.namespace == "c10d":
            self._move(func.__name__, args)
        # An upper bound, since storages may have ended: counted exactly only where it would make a new peak.
        if self.allocated > self.peak:
            self.settle()
        return result

    def _touch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, FakeTensor):
            if tensor.device.type != "meta":
                self.real = max(self.real, storage.nbytes())
            return
        nbytes, entry = storage.nbytes(), self._storages.get(storage._cdata)
        if entry is None or entry.reference.expired():
            entry = _Storage(StorageWeakRef(storage), 0, self._counts, tensor.device == HOST)
            self._storages[storage._cdata] = entry
        if nbytes != entry.nbytes and entry.counts and not entry.host:
            self.allocated += rounded(nbytes) - rounded(entry.nbytes)
        entry.nbytes = nbytes

    def _move(self, name: str, args: Any) -> None:
        """Adds what a collective of this rank moves, of gathers and scatters without its own part."""
        sizes = [sum(tensor.nbytes for tensor in _tensors(part)) for part in args[:2]]
        gathered, scattered, reduced = self.moved
        if "allgather" in name:
            gathered += max(sizes) - min(sizes)
        elif "reduce_scatter" in name:
            scattered += max(sizes) - min(sizes)
        elif "allreduce" in name:
            reduced += sizes[0]
        self.moved = gathered, scattered, reduced


@contextmanager
def automatic_collection_off() -> Iterator[None]:
    """Leaves garbage to `Ledger.collect`, and to dynamo, which collects young objects once it has compiled.

    An automatic collection before that would make them old, so they would count for longer, depending on what ran before in this process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rounded(nbytes: int) -> int:
    """Returns the bytes that the CUDA caching allocator takes for a storage. Pure."""
    return -(-nbytes // BLOCK) * BLOCK


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in tree_leaves(values):
        tensor = getattr(value, "_local_tensor", value)
        if isinstance(tensor, Tensor):
            yield tensor
