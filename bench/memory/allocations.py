"""What a computation allocates in torch, storage by storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Follows, while it is entered, the storages that operators make, until the last tensor releases them.

    `largest` is the largest storage, `peak` the most that was held at one time; bytes. What was held before counts nothing,
    nor do pages of mapped files.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = 0
        self._live: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        earlier = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        made = [storage for storage in _storages(result) if storage._cdata not in earlier]
        for storage in made:
            if storage._cdata not in self._live:
                self._live[storage._cdata] = StorageWeakRef(storage)
        if made or func._schema.is_mutable:  # a view takes no memory
            self.bytes_held()
        return result

    def bytes_held(self) -> int:
        """Returns the bytes that are held now."""
        total, strong = 0, torch.UntypedStorage._new_with_weak_ptr
        for address, reference in list(self._live.items()):
            storage = strong(reference.cdata)
            if storage is None:
                del self._live[address]
                continue
            size = storage.nbytes()  # FSDP frees and takes memory by resizing
            self.largest = max(self.largest, size)
            total += size
        self.peak = max(self.peak, total)
        return total


def _storages(values: Any) -> Iterator[Any]:
    for value in tree_leaves(values):
        tensor = getattr(value, "_local_tensor", value)
        if isinstance(tensor, Tensor) and tensor.device.type != "meta":
            yield tensor.untyped_storage()
