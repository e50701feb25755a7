"""Finds which of an engine's weights are not the published ones, when log-probs differ although all bytes arrived.

What a kernel computes with may be a packed copy, so weights of layers can't be compared directly: the layer is given
random vectors, and so is the published tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

# Random vectors that a layer is given.
VECTORS = 4
_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")


class WeightDifferences:
    """Compares published tensors with those of one worker's model, as they come."""

    def __init__(self, model: torch.nn.Module, rank: int) -> None:
        self._modules, self._parameters = dict(model.named_modules()), dict(model.named_parameters())
        self._packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
        self._rank = rank
        self._experts: dict[tuple[str, int], dict[str, Tensor]] = {}

    @torch.no_grad()
    def compare(self, tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, float]]:
        """Computes relative differences by name, of those tensors that can be compared.

        Rounding gives small ones, and weights that are unrelated to what was published about 1 or more. An expert has one name, once all
        its tensors have come.
        """
        return [
            (name, _relative(actual, expected))
            for published, tensor in tensors
            for name, actual, expected in self._compared(published, tensor)
        ]

    def _compared(self, published: str, tensor: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yields for each comparison its name, what this worker has or computes, and what it should."""
        place, _, kind = published.rpartition(".")
        parent, _, last = place.rpartition(".")
        layer, _, number = parent.rpartition(".")
        if last in _EXPERT_PARTS and number.isdigit() and (experts := self._fused(layer)) is not None:
            if together := self._expert(parent, int(number), last, tensor):
                yield parent, *_of_expert(experts, int(number), *together)
        elif kind == "weight" and (part := self._linear(parent, last)):
            layer_module, first, size = part
            if (own := _slice(layer_module, tensor, size, self._rank)) is not None:
                yield published, *_of_linear(layer_module, first, own)
        elif (parameter := self._parameters.get(published)) is not None:
            actual, expected = parameter, tensor
            if isinstance(module := self._modules.get(place), VocabParallelEmbedding):
                rows = module.shard_indices  # of the vocabulary; the worker's own are padded
                expected = tensor[rows.org_vocab_start_index : rows.org_vocab_end_index]
                actual = parameter[: len(expected)]
            if actual.shape == expected.shape:
                yield published, actual.float().cpu(), expected.float()

    def _fused(self, name: str) -> Any:
        """Returns the fused SwiGLU experts of this name or right below it, in a worker that has all of them whole; None otherwise."""
        for module in (self._modules.get(name), self._modules.get(f"{name}.routed_experts")):
            method = getattr(module, "quant_method", None)
            if isinstance(method, UnquantizedFusedMoEMethod) and module is not None:
                whole = method.moe.moe_parallel_config.tp_size == 1 and module.expert_map is None
                return module if whole and module.activation is MoEActivation.SILU else None
        return None

    def _expert(self, name: str, number: int, part: str, tensor: Tensor) -> list[Tensor]:
        parts = self._experts.setdefault((name, number), {})
        parts[part] = tensor.float().clone()
        if len(parts) < len(_EXPERT_PARTS):
            return []
        del self._experts[name, number]
        return [parts[part_name] for part_name in _EXPERT_PARTS]

    def _linear(self, parent: str, last: str) -> tuple[Any, int, int] | None:
        """Returns the layer that has this tensor, where its rows begin in the layer, and how many this worker has of them.

        None if there is no such layer, or none that can be compared.
        """
        for name, parts in {last: [last], **self._packed}.items():
            module = self._modules.get(f"{parent}.{name}" if parent else name)
            if last not in parts or not isinstance(module, LinearBase):
                continue
            if type(module.quant_method) is not UnquantizedLinearMethod:
                continue
            sizes = getattr(module, "output_partition_sizes", None) or [module.output_size]
            if len(sizes) == len(parts):
                index = parts.index(last)
                return module, sum(sizes[:index]), sizes[index]
        return None


def _slice(module: Any, tensor: Tensor, rows: int, rank: int) -> Tensor | None:
    """Returns the part of a tensor that a worker has, judged by its size; None if that doesn't tell."""
    columns = getattr(module, "input_size_per_partition", module.input_size)
    if tensor.shape == (rows, columns):
        return tensor
    if tensor.shape[1] == columns and tensor.shape[0] % rows == 0:
        # If there are fewer heads of keys and values than workers, neighbours have the same head.
        first = rank * tensor.shape[0] // (module.tp_size * rows) * rows
        return tensor[first : first + rows] if first + rows <= tensor.shape[0] else None
    if tensor.shape[0] == rows and tensor.shape[1] % columns == 0:
        return tensor[:, rank * columns : (rank + 1) * columns] if (rank + 1) * columns <= tensor.shape[1] else None
    return None


def _of_linear(module: Any, first: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
    vectors, inputs = _vectors(module, tensor.shape[1])
    outputs = module.quant_method.apply(module, inputs, None)
    return outputs[:, first : first + len(tensor)].float().cpu(), vectors @ tensor.float().T


def _of_expert(experts: Any, number: int, gate: Tensor, up: Tensor, down: Tensor) -> Iterator[Tensor]:
    vectors, inputs = _vectors(experts, gate.shape[1])
    weights = torch.ones(VECTORS, 1, dtype=torch.float32, device=inputs.device)
    ids = torch.full((VECTORS, 1), number, dtype=torch.int32, device=inputs.device)
    yield experts.quant_method.apply(experts, inputs, weights, ids, None, None).float().cpu()
    yield (functional.silu(vectors @ gate.T) * (vectors @ up.T)) @ down.T


def _vectors(module: Any, size: int) -> tuple[Tensor, Tensor]:
    """Draws random vectors, always the same, as float32 on the CPU and as the layer takes them. Both are [VECTORS, size]."""
    parameter = next(module.parameters())
    drawn = torch.randn(VECTORS, size, generator=torch.Generator().manual_seed(0)).to(parameter.dtype)
    return drawn.float(), drawn.to(parameter.device)


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-12))
