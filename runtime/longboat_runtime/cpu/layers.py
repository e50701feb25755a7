"""Linear layers and norms for float32 on CPUs. They compute what the model's own do, but for rounding.

Torch brings two libraries that multiply float32 matrices, and takes MKL, which uses half of the vector width of processors that aren't
Intel's. Measured on an AMD EPYC with AVX-512, one thread, 1280 x 128 by 128 x 256: MKL 95 GFLOP/s, oneDNN 235. On Intel's they are
equally fast. Engines (vLLM) multiply by oneDNN too.

Transformers' RMS norms go over their input once for each of half a dozen operations, and back for each: a quarter of the forward pass of
a model of a few million parameters. Measured there, two threads, forward and back: 1024 x 128 takes 1.8 ms, here 0.2; 4096 x 128 takes
3.4 ms, here 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from longboat_crds.model import DType

# How many images `_of_weight` makes of its rows.
_IMAGES = 16


def are_faster(dtype: DType, *, onednn: bool) -> bool:
    """Returns whether these layers are faster. Torch uses oneDNN for other dtypes anyway."""
    return onednn and dtype is DType.FLOAT32


def install(model: nn.Module, *, norms: bool = True) -> None:
    """Makes the linear layers of `model` compute with these, and with `norms` its RMS norms too.

    A compiled model keeps its own norms: torch compiles a norm into fewer passes than it takes here.
    """
    for module in model.modules():
        kind: Any = type(module)
        if kind.forward is nn.Linear.forward:
            module.__class__ = _computing_by(_linear, kind)
        elif norms and _scales_only(module):
            module.__class__ = _computing_by(_norm, kind)


@cache
def _computing_by(forward: Callable[..., Tensor], kind: type[nn.Module]) -> type[nn.Module]:
    """Makes a subclass of `kind` that computes by `forward`, the same one for the same arguments.

    If each module had a function of its own, torch would compile every layer again.
    """
    return type(kind.__name__, (kind,), {"forward": forward})


def _scales_only(module: nn.Module) -> bool:
    """Whether a module is an RMS norm that multiplies by its weight.

    Transformers' other kinds have other class names, other names for their epsilon, or more parameters.
    """
    named = type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
    return named and [name for name, _ in module.named_parameters()] == ["weight"]


def _linear(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return OneDnnLinear.apply(inputs, layer.weight, layer.bias)


def _norm(norm: Any, inputs: Tensor) -> Tensor:
    return RmsNorm.apply(inputs, norm.weight, norm.variance_epsilon)


class RmsNorm(torch.autograd.Function):
    """`apply(inputs, weight, epsilon)` divides (..., size) by its root mean square over the last dimension and multiplies by (size)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        scale = length.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        normed = inputs * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        (gradient,) = gradients
        product = gradient * normed
        along = (product @ weight).div_(len(weight))[..., None]
        of_inputs = (gradient * weight).sub_(normed * along).mul_(scale)
        return of_inputs, product.reshape(-1, len(weight)).sum(0), None


class OneDnnLinear(torch.autograd.Function):
    """`apply(inputs, weight, bias)` is `nn.functional.linear`: (..., in), (out, in), (out) or None -> (..., out)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        return torch.ops.longboat.product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[0])
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs = torch.ops.longboat.product(gradients[0], weight.t(), None)
        if ctx.needs_input_grad[1]:
            of_weight = torch.ops.longboat.of_weight(gradient, inputs.reshape(-1, weight.shape[1]))
        if ctx.has_bias and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_inputs, of_weight, of_bias


def _of_weight(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Computes the gradient (out, in) of a weight, from that of its layer's results (rows, out) and from its inputs (rows, in).

    The product of matrices needs a transposed copy of the gradient, which costs as much as the product itself if rows are many and
    short. The weight of a convolution over single points has the same gradient, for which oneDNN needs no copy: measured on an AMD
    EPYC with AVX-512, 4480 rows take 0.5 to 0.8 of the time with widths of 64 to 512, and 1152 rows at a width of 3072 take longer:
    the product stays where rows are fewer than twice the width, or no multiple of _IMAGES. With one thread torch gives oneDNN only
    batches of sixteen and more.
    """
    rows, (out, in_) = len(inputs), (gradient.shape[1], inputs.shape[1])
    if rows % _IMAGES or rows < 2 * max(out, in_):
        return _product(gradient.t(), inputs.t())

    def images(matrix: Tensor) -> Tensor:
        # (images, channels, points, 1), channels last.
        return matrix.contiguous().view(_IMAGES, rows // _IMAGES, 1, matrix.shape[1]).permute(0, 3, 1, 2)

    return conv2d_weight(images(inputs), (out, in_, 1, 1), images(gradient)).view(out, in_)


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


# As operators of their own both can be part of what torch compiles, which otherwise knows no oneDNN for training.
_OPERATORS = torch.library.Library("longboat", "DEF")
_OPERATORS.define("product(Tensor inputs, Tensor weight, Tensor? bias) -> Tensor")
_OPERATORS.define("of_weight(Tensor gradient, Tensor inputs) -> Tensor")
_OPERATORS.impl("product", _product, "CPU")
_OPERATORS.impl("of_weight", _of_weight, "CPU")


@torch.library.register_fake("longboat::product", lib=_OPERATORS)
def _product_shape(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del bias
    return inputs.new_empty(*inputs.shape[:-1], weight.shape[0])


@torch.library.register_fake("longboat::of_weight", lib=_OPERATORS)
def _of_weight_shape(gradient: Tensor, inputs: Tensor) -> Tensor:
    return gradient.new_empty(gradient.shape[1], inputs.shape[1])
