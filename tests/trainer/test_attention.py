"""Packed attention on GPUs, where one kernel computes all samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longboat_runtime.trainer import attention
from longboat_runtime.trainer.machine import MACHINE

HEADS, SIZE = 8, 64
LENGTHS = (301, 301, 97, 64, 63, 1)


def inputs(key_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value of all samples."""
    torch.manual_seed(0)
    shapes = ((1, heads, sum(LENGTHS), SIZE) for heads in (HEADS, key_heads, key_heads))
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]


def attended(tensors: list[Tensor], window: int | None) -> list[Tensor]:
    """The result, and the gradients of the inputs."""
    result, _ = attention.packed_attention(
        torch.nn.Identity(), *tensors, None, packing=attention.Packing(LENGTHS, MACHINE), sliding_window=window
    )
    ramp = torch.linspace(-1.0, 1.0, result.numel(), device="cuda").view_as(result)
    (result.float() * ramp).sum().backward()
    return [result.detach().float(), *(tensor.grad.float() for tensor in tensors)]


@pytest.mark.parametrize(
    ("capability", "dtype", "size", "expected"),
    [
        ((9, 0), torch.bfloat16, 128, True),
        ((8, 0), torch.float16, 256, True),
        ((10, 3), torch.bfloat16, 256, True),
        ((8, 9), torch.bfloat16, 192, True),
        ((8, 9), torch.bfloat16, 256, False),
        ((12, 0), torch.bfloat16, 256, False),
        ((9, 0), torch.bfloat16, 264, False),
        ((9, 0), torch.bfloat16, 100, False),
        ((9, 0), torch.float32, 128, False),
        ((7, 5), torch.float16, 64, False),
    ],
)
def test_flash_attention_has_kernels_for_half_precision_since_ampere(
    *, capability: tuple[int, int], dtype: torch.dtype, size: int, expected: bool
) -> None:
    assert attention.flash_attends(capability, dtype, size) is expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("window", [None, 40, 1000])
@pytest.mark.parametrize("key_heads", [8, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_kernel_computes_what_single_samples_give(dtype: torch.dtype, key_heads: int, window: int | None) -> None:
    together = inputs(key_heads, dtype)
    assert attention.takes_all(together[0])
    exact = [tensor.detach().float().requires_grad_() for tensor in together]
    assert not attention.takes_all(exact[0])
    for found, expected in zip(attended(together, window), attended(exact, window), strict=True):
        rounding = 4 * torch.finfo(dtype).eps * expected.abs().max()
        assert (found - expected).abs().max() < rounding
