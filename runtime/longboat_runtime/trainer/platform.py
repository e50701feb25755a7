"""Defines what a rank asks of the machine that it runs on: its group, files and devices, and values that the host reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


class Copies(Protocol):
    """Copies between device and pinned host memory, one after another, beside what the device computes."""

    def start(self, target: Tensor, source: Tensor) -> Any:
        """Starts to copy `source` into `target`, once the device has done what it was given so far. Returns what `wait` takes."""

    def wait(self, done: Any) -> None:
        """Has the device do what it is given from now on after that copy."""


class Platform(Protocol):
    """Everything that a rank asks of the machine that it runs on; all else is tensors.

    A plan of a job's memory hands a rank another one, which has no files, devices or values. `device` is the type of the devices
    (`cuda`, `cpu`); `host` is where copies in host memory are allocated.
    """

    @property
    def device(self) -> str: ...

    @property
    def host(self) -> torch.device: ...

    def join(self, address: str, rank: int, world_size: int, copies: int) -> tuple[DeviceMesh, DeviceMesh]:
        """See `process_group.join`."""

    def together(self) -> AbstractContextManager[None]:
        """See `process_group.together`."""

    def check_compiler(self) -> None:
        """See `forward.check_compiler`."""

    def choose_attention(self, config: Any) -> str:
        """See `self_check.choose_attention`."""

    def head_can_be_fused(self, config: Any) -> bool:
        """See `self_check.head_can_be_fused`."""

    def load_weights(self, model: nn.Module, path: Path, conversions: Sequence[Any]) -> None:
        """See `weight_files.load_weights`."""

    def takes_all(self, query: Tensor) -> bool:
        """See `attention.takes_all`."""

    def pinned(self, size: int) -> Tensor:
        """Allocates `size` bytes of host memory, from and to which the device copies while it computes. Raises SpecProblem."""

    def copies(self) -> Copies:
        """Returns copies in an order of their own."""

    def read(self, tensor: Tensor) -> Any:
        """Returns the values of `tensor` as numbers, in lists as `tolist` nests them. Waits for the device."""

    def time_done(self) -> float:
        """Returns the time, in seconds, once the device has done what it was given."""
