"""A machine without files, devices or values, on which a rank is traced: fake tensors in a fake process group of any size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from longboat_runtime.plan.ledger import HOST, Ledger
from longboat_runtime.trainer.attention import flash_attends, register
from longboat_runtime.trainer.copies import HostCopies
from longboat_runtime.trainer.process_group import mesh

# The compute capability of H100 and H200, on which FlashAttention takes the largest heads.
CAPABILITY = (9, 0)


class FakeMachine:
    """The `Platform` of a rank that is traced as if on a GPU. `attention` and `fused` answer for the checks of the small model.

    Every value that the host reads is 0. At each read, `reads` gets the peak of the `ledger` since the last.
    """

    device = "cuda"
    host = HOST

    def __init__(self, attention: str, fused: bool, ledger: Ledger) -> None:
        self._attention, self._fused, self._ledger = attention, fused, ledger
        self.reads: list[int] = []

    def join(self, address: str, rank: int, world_size: int, copies: int) -> tuple[DeviceMesh, DeviceMesh]:
        """Makes a group that sends nothing. Call it outside of FakeTensorMode, since a mesh holds real numbers of ranks."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        ranks = mesh("cpu", world_size, copies)
        return ranks, ranks

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def check_compiler(self) -> None:
        """Does nothing: nothing is compiled for a device."""

    def choose_attention(self, config: Any) -> str:
        register()
        return self._attention

    def head_can_be_fused(self, config: Any) -> bool:
        return self._fused

    def load_weights(self, model: nn.Module, path: Path, conversions: Sequence[Any]) -> None:
        """Reads nothing: fake weights have no values."""

    def takes_all(self, query: Tensor) -> bool:
        return flash_attends(CAPABILITY, query.dtype, query.shape[-1])

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=HOST)

    def copies(self) -> HostCopies:
        return HostCopies()

    def read(self, tensor: Tensor) -> Any:
        self._ledger.settle()
        self.reads.append(self._ledger.peak)
        self._ledger.restart()
        return _zeros(tensor.shape)

    def time_done(self) -> float:
        return time.monotonic()


def _zeros(shape: Sequence[int]) -> Any:
    if not shape:
        return 0.0
    return [_zeros(shape[1:]) for _ in range(shape[0])]


@contextmanager
def fake_group() -> Iterator[None]:
    """Ends the group that a rank joins in the block."""
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
