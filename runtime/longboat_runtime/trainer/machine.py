"""The machine that a rank trains on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.attention import takes_all
from longboat_runtime.trainer.copies import HostCopies, StreamCopies, pinned
from longboat_runtime.trainer.forward import check_compiler
from longboat_runtime.trainer.platform import Copies
from longboat_runtime.trainer.self_check import choose_attention, head_can_be_fused
from longboat_runtime.trainer.weight_files import load_weights


class Machine:
    """The `Platform` of a rank that trains: this machine."""

    host = torch.device("cpu")

    @property
    def device(self) -> str:
        return process_group.device_type()

    def join(self, address: str, rank: int, world_size: int, copies: int) -> tuple[DeviceMesh, DeviceMesh]:
        return process_group.join(address, rank, world_size, copies)

    def together(self) -> AbstractContextManager[None]:
        return process_group.together()

    def check_compiler(self) -> None:
        check_compiler(self.device)

    def choose_attention(self, config: Any) -> str:
        return choose_attention(config, self)

    def head_can_be_fused(self, config: Any) -> bool:
        return head_can_be_fused(config, self)

    def load_weights(self, model: nn.Module, path: Path, conversions: Sequence[Any]) -> None:
        load_weights(model, path, conversions)

    def takes_all(self, query: Tensor) -> bool:
        return takes_all(query)

    def pinned(self, size: int) -> Tensor:
        return pinned(size) if self.device == "cuda" else torch.empty(size, dtype=torch.uint8)

    def copies(self) -> Copies:
        return StreamCopies() if self.device == "cuda" else HostCopies()

    def read(self, tensor: Tensor) -> Any:
        return tensor.tolist()

    def time_done(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic()


MACHINE = Machine()
