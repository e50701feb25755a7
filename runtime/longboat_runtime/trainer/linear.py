"""Linear layers by oneDNN instead of MKL, for float32 on CPUs.

Torch brings both libraries and multiplies float32 matrices by MKL, which uses half of the vector width of processors that aren't
Intel's. Measured on an AMD EPYC with AVX-512, one thread, 1280 x 128 by 128 x 256: MKL 95 GFLOP/s, oneDNN 235. On Intel's they are
equally fast. Engines (vLLM) multiply by oneDNN too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longboat_crds.model import DType


def uses_onednn(device: str, dtype: DType, *, available: bool) -> bool:
    """Whether a model's linear layers should multiply by oneDNN. Other number formats go through it anyway. Pure."""
    return available and device == "cpu" and dtype is DType.FLOAT32


def multiply_by_onednn(model: nn.Module) -> None:
    """Makes the linear layers of `model` use it. What they compute stays the same, but for rounding."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_forward, module)


def _forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return OneDnnLinear.apply(inputs, layer.weight, layer.bias)


class OneDnnLinear(torch.autograd.Function):
    """`apply(inputs, weight, bias)` is `nn.functional.linear`: (..., in), (out, in), (out) or None -> (..., out)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[0])
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs = _product(gradients[0], weight.t())
        if ctx.needs_input_grad[1]:
            of_weight = _product(gradient.t(), inputs.reshape(-1, weight.shape[1]).t())
        if ctx.has_bias and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_inputs, of_weight, of_bias


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
