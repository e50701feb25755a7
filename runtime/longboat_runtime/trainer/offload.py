"""Keeps the inputs of recomputed layers in host memory between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.trainer.platform import Platform


@dataclass(frozen=True, slots=True)
class _Offloaded:
    """Stands for a saved tensor: the input of the layer at `position` in forward pass `number`."""

    number: int
    position: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Offload:
    """Moves the first argument of each recomputed layer to pinned host memory, and back shortly before its backward pass.

    Copies run beside the computation: a layer's argument leaves while that layer computes, and returns during the backward pass of the
    next layer. So the device holds two or three of them instead of one for each layer. Other arguments stay, and so do tensors that the
    forward pass didn't compute: weights, and tables that all layers share.

    Each position in the order of layers has one buffer, allocated once for bins of `bin_tokens` tokens. A forward pass overwrites the
    buffers of the last one: only the newest can have a backward pass.
    """

    def __init__(self, platform: Platform, bin_tokens: int) -> None:
        self._platform, self._copies, self._bin_tokens = platform, platform.copies(), bin_tokens
        self._memory: list[Tensor] = []
        self._number = self._tokens = 0
        self._offloaded: list[_Offloaded] = []
        self._argument: Tensor | None = None
        # A copy to the host that may be under way, with what is copied; one from the host, with its result and its position.
        self._leaving: tuple[Any, Tensor] | None = None
        self._coming: tuple[Any, Tensor, int] | None = None

    def install(self, model: nn.Module) -> None:
        """Installs hooks in `model`, whose gradient checkpointing must be on. Each forward pass discards the last one."""
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = self._checkpoint
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.register_forward_hook(self._end)

    def _begin(self, model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        del model, inputs
        self._settle()
        if self._coming is not None:
            self._copies.wait(self._coming[0])
        self._coming, self._offloaded = None, []
        self._number += 1
        self._tokens = keywords["input_ids"].numel()

    def _end(self, model: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # Releases memory for the head's backward pass, which needs more than any layer's.
        del model, inputs, output
        self._settle()

    def _checkpoint(self, function: Any, *arguments: Any) -> Any:
        """Runs a layer as torch's gradient checkpointing does."""
        if not arguments:
            raise SpecProblem(
                Reason.SPEC_INVALID,
                "spec.trainer.offloadActivations",
                "the layers of this architecture don't take activations as their first argument; set it to false",
            )
        first = arguments[0]
        computed = isinstance(first, Tensor) and first.grad_fn is not None and first.is_contiguous()
        self._argument = first if computed and not isinstance(first._base, nn.Parameter) else None
        with saved_tensors_hooks(self._pack, self._unpack):
            return checkpoint(function, *arguments, use_reentrant=False)

    def _pack(self, saved: Tensor) -> Tensor | _Offloaded:
        argument = self._argument
        # Autograd saves another tensor object of the same memory.
        if argument is None or saved.shape != argument.shape or not torch._C._is_alias_of(saved, argument):
            return saved
        self._argument = None
        self._settle()
        entry = _Offloaded(self._number, len(self._offloaded), saved.shape, saved.dtype, saved.device)
        self._offloaded.append(entry)
        source = saved.detach()
        self._reserve(entry.position, source.nbytes)
        self._leaving = self._copies.start(self._copy_of(entry), source), source
        return entry

    def _unpack(self, packed: Tensor | _Offloaded) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if packed.number != self._number:
            raise RuntimeError("activations of a forward pass before the last are no longer there")
        self._settle()
        if self._coming is None or self._coming[2] != packed.position:
            self._fetch(packed.position)
        assert self._coming is not None
        done, result, _ = self._coming
        self._coming = None
        self._copies.wait(done)
        if packed.position:
            self._fetch(packed.position - 1)
        return result

    def _fetch(self, position: int) -> None:
        """Starts to copy back the input of the layer at `position`."""
        entry = self._offloaded[position]
        result = torch.empty(entry.shape, dtype=entry.dtype, device=entry.device)
        self._coming = self._copies.start(result, self._copy_of(entry)), result, position

    def _settle(self) -> None:
        """Releases the tensor that was last copied to the host; the device reuses its memory after the copy."""
        if self._leaving is not None:
            self._copies.wait(self._leaving[0])
            self._leaving = None

    def _reserve(self, position: int, size: int) -> None:
        """Allocates a buffer unless there is one of `size` bytes, large enough for a bin of `bin_tokens` tokens."""
        largest = max(size, size * self._bin_tokens // self._tokens)
        if position == len(self._memory):
            self._memory.append(self._platform.pinned(largest))
        elif self._memory[position].nbytes < size:
            self._memory[position] = self._platform.pinned(largest)

    def _copy_of(self, entry: _Offloaded) -> Tensor:
        """Returns the tensor in host memory that `entry` stands for."""
        size = entry.shape.numel() * entry.dtype.itemsize
        return self._memory[entry.position][:size].view(entry.dtype).view(entry.shape)
