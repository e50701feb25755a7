"""Copies between the device and pinned host memory."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason


class HostCopies:
    """The `Copies` of a CPU, which copies at once."""

    def start(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def wait(self, done: Any) -> None:
        pass


class StreamCopies:
    """The `Copies` of a GPU: on a stream of their own."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def start(self, target: Tensor, source: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def wait(self, done: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(done)


def pinned(size: int) -> Tensor:
    """Allocates `size` bytes of host memory, pinned until the last tensor releases them. Raises SpecProblem if the host refuses.

    Torch's own pinned memory is rounded up to powers of two: up to twice as much. CUDA pins whole pages, and none twice, so the memory
    starts at a page boundary and shares no page.
    """
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = torch.empty(whole + mmap.PAGESIZE, dtype=torch.uint8)
    start = -memory.data_ptr() % mmap.PAGESIZE
    pages = memory[start : start + whole]
    failed = int(torch.cuda.cudart().cudaHostRegister(pages.data_ptr(), whole, 0))
    if failed:
        raise SpecProblem(
            Reason.SPEC_INVALID,
            None,
            f"the trainer's host can't pin {size} more bytes (CUDA error {failed}), for the weights that it publishes or for activations; "
            "raise the memory of trainer pods, or set trainer.offloadActivations to false",
        )
    # All views share the storage, whose finalizer runs before it is freed. At exit it doesn't run: there may be no device any more.
    weakref.finalize(memory.untyped_storage(), _unpin, pages.data_ptr()).atexit = False
    return pages[:size]


def _unpin(address: int) -> None:
    """Undoes `cudaHostRegister` once the device no longer copies from or to the memory."""
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)
