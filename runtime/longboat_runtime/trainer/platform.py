"""Defines the interface between a rank and its machine: its group, files and devices, and values that the host reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


class Copies(Protocol):
    """Copies between device and pinned host memory, one after another, while the device computes."""

    def start(self, target: Tensor, source: Tensor) -> Any:
        """Copies `source` into `target` once the device has finished its earlier work. Returns a handle for `wait`."""

    def wait(self, done: Any) -> None:
        """Makes the device's later work wait for that copy."""


class Platform(Protocol):
    """The machine that a rank runs on; everything else that a rank uses is tensors.

    A plan of a job's memory hands the rank a fake one without files, devices or values. `device` is the type of the devices (`cuda`,
    `cpu`); `host` is the device on which copies in host memory are allocated.
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
        """Allocates `size` bytes of host memory for copies beside the device's computation. Raises SpecProblem if there isn't enough."""

    def copies(self) -> Copies:
        """Returns a new, independent queue of copies."""

    def read(self, tensor: Tensor) -> Any:
        """Returns the values of `tensor` as numbers, in lists as `tolist` nests them. Waits for the device."""

    def time_done(self) -> float:
        """Waits for the device to finish; returns the monotonic time in seconds."""
