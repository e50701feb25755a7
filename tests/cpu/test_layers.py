"""Layers for CPUs compute what the model's own do."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from longboat_crds.model import DType
from longboat_runtime.cpu import layers


@pytest.mark.parametrize("bias", [False, True])
# With 96 rows the weight's gradient is computed as that of a convolution, with 97 it is not.
@pytest.mark.parametrize("shape", [(1, 96, 24), (1, 97, 24), (3, 32, 24), (3, 5, 24), (24,)])
def test_outputs_and_gradients_are_those_of_torch(*, bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=bias)
    inputs, gradient = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 40)

    def results() -> list[torch.Tensor]:
        output = layer(inputs)
        return [output, *torch.autograd.grad(output, [inputs, *layer.parameters()], gradient)]

    expected = results()
    layers.install(layer)
    assert "OneDnnLinear" in type(layer(inputs).grad_fn).__name__
    for found, wanted in zip(results(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_have_the_same_bits_each_time(threads: int) -> None:
    layer = nn.Linear(24, 40)
    layers.install(layer)
    inputs, gradient = torch.randn(1, 1024, 24), torch.randn(1, 1024, 40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, *others = [torch.autograd.grad(layer(inputs), layer.weight, gradient)[0] for _ in range(10)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(other, first) for other in others)


class Qwen3Norms(nn.Module):
    """Transformers' norm, which is replaced, and Gemma's, which adds 1 to its weight and is not."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.plain, self.shifted = Qwen3RMSNorm(size), Gemma3RMSNorm(size)
        nn.init.normal_(self.plain.weight)
        nn.init.normal_(self.shifted.weight)


@pytest.mark.parametrize("shape", [(1, 37, 24), (1, 5, 4, 24), (24,)])
def test_norms_and_their_gradients_are_those_of_transformers(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norms = Qwen3Norms(24)
    inputs, gradient = torch.randn(shape, requires_grad=True), torch.randn(shape)

    def results() -> list[torch.Tensor]:
        return [
            value
            for norm in (norms.plain, norms.shifted)
            for output in [norm(inputs)]
            for value in [output, *torch.autograd.grad(output, [inputs, norm.weight], gradient)]
        ]

    expected = results()
    layers.install(norms)
    assert "RmsNorm" in type(norms.plain(inputs).grad_fn).__name__
    assert "RmsNorm" not in type(norms.shifted(inputs).grad_fn).__name__
    for found, wanted in zip(results(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_same_bits_each_time() -> None:
    layer = nn.Linear(64, 96, bias=False)
    layers.install(layer)
    inputs = torch.randn(1, 100, 64)
    first, second = (torch.autograd.grad(layer(inputs).square().sum(), layer.weight)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("dtype", "available", "expected"),
    [(DType.FLOAT32, True, True), (DType.FLOAT32, False, False), (DType.BFLOAT16, True, False)],
)
def test_only_float32(*, dtype: DType, available: bool, expected: bool) -> None:
    assert layers.are_faster(dtype, onednn=available) is expected
