"""Norms by vLLM's kernels for CPUs are those of torch."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm import ir

from longboat_runtime.cpu import norms

EPSILON = 1e-6


def test_rms_norm() -> None:
    """Also of a part of a wider tensor, as heads of queries are."""
    torch.manual_seed(0)
    weight = torch.randn(32)
    for x in (torch.randn(5, 32), torch.randn(5, 256)[:, :128].view(5, 4, 32)):
        native = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
        torch.testing.assert_close(norms.rms_norm.impl_fn(x, weight, EPSILON), native, atol=1e-6, rtol=1e-6)


def test_fused_add_rms_norm() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 128), torch.randn(5, 128), torch.randn(128)
    native = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    found = norms.fused_add_rms_norm.impl_fn(x.clone(), residual.clone(), weight, EPSILON)
    for one, other in zip(found, native, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("width", "dtype", "has_weight", "fits"),
    [
        (64, torch.float32, True, True),
        (24, torch.float32, True, False),
        (64, torch.bfloat16, True, False),
        (64, torch.float32, False, False),
    ],
)
def test_what_the_kernels_do_not_take_goes_to_torch(
    *, width: int, dtype: torch.dtype, has_weight: bool, fits: bool
) -> None:
    weight = torch.ones(width) if has_weight else None
    assert norms.rms_norm.supports_args(torch.ones(2, width, dtype=dtype), weight, EPSILON) is fits
