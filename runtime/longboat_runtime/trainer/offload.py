"""What layers are recomputed from, kept in host memory between the forward and the backward pass."""

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
    """Says which copy stands for a saved tensor: that of the layer at `position` of forward pass `number`."""

    number: int
    position: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Offload:
    """Moves the first argument of each recomputed layer of one model to pinned host memory, and back when its backward pass is near.

    Copies run beside the computation: a layer's argument leaves while that layer computes, and comes back while the layer after it
    goes through its backward pass. So the device holds two of them, or three, instead of one for each layer. What isn't computed in the
    pass stays: weights, and tables that all layers share. Other arguments do too.

    There is one copy for each place in the order of layers, whose memory is allocated once, for bins of `bin_tokens` tokens. A forward
    pass replaces those of the pass before it: only the newest has a backward pass.
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
        """Has `model`, whose gradient checkpointing is on, offload. Before each of its forward passes the last one is forgotten."""
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
        # The head's backward pass takes more memory than any layer's.
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
        # What is saved is another tensor object of the same memory.
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
        """Starts to copy back what the layer at `position` was given."""
        entry = self._offloaded[position]
        result = torch.empty(entry.shape, dtype=entry.dtype, device=entry.device)
        self._coming = self._copies.start(result, self._copy_of(entry)), result, position

    def _settle(self) -> None:
        """Releases what was copied to the host last; the device reuses its memory after the copy."""
        if self._leaving is not None:
            self._copies.wait(self._leaving[0])
            self._leaving = None

    def _reserve(self, position: int, size: int) -> None:
        """Makes sure of memory for a copy of `size` bytes, and in later passes for one of a bin of `bin_tokens`."""
        largest = max(size, size * self._bin_tokens // self._tokens)
        if position == len(self._memory):
            self._memory.append(self._platform.pinned(largest))
        elif self._memory[position].nbytes < size:
            self._memory[position] = self._platform.pinned(largest)

    def _copy_of(self, entry: _Offloaded) -> Tensor:
        """Returns the tensor in host memory that `entry` stands for."""
        size = entry.shape.numel() * entry.dtype.itemsize
        return self._memory[entry.position][:size].view(entry.dtype).view(entry.shape)
