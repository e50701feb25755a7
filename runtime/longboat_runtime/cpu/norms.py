"""Norms of an eager engine on CPUs by vLLM's own kernels.

vLLM has kernels for RMS norms on CPUs, but by default computes each norm with several torch operations, which its compiler fuses. An
eager engine runs them one by one, seventeen times a step in a model of four layers. With the kernels a step of 32 sequences takes a tenth
less.

Importing this module registers them with vLLM as NORM_PROVIDER.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

from longboat_runtime.cpu import NORM_PROVIDER

current_platform.import_kernels()

# Values of one vector register in the kernels; they take whole ones.
_VECTOR = 16


def _fits(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and weight is not None and weight.dtype is x.dtype and x.shape[-1] % _VECTOR == 0


def _fused_fits(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _fits(x, weight, epsilon, variance_size) and x.is_contiguous() and x_residual.is_contiguous()


@ir.ops.rms_norm.register_impl(NORM_PROVIDER, supports_args=_fits)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """See vllm.ir.ops.layernorm.rms_norm."""
    x = x.contiguous()
    normed = torch.empty_like(x)
    torch.ops._C.rms_norm(normed, x, weight, epsilon)
    return normed


@ir.ops.fused_add_rms_norm.register_impl(NORM_PROVIDER, supports_args=_fused_fits, inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """See vllm.ir.ops.layernorm.fused_add_rms_norm."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
