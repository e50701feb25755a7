"""Linear layers by oneDNN compute what torch's own do."""

import pytest
import torch
from torch import nn

from longboat_crds.model import DType
from longboat_runtime.trainer.linear import multiply_by_onednn, uses_onednn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 37, 24), (3, 5, 24), (24,)])
def test_outputs_and_gradients_are_those_of_torch(*, bias: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=bias)
    inputs, gradient = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 40)

    def results() -> list[torch.Tensor]:
        output = layer(inputs)
        return [output, *torch.autograd.grad(output, [inputs, *layer.parameters()], gradient)]

    expected = results()
    multiply_by_onednn(layer)
    assert "OneDnnLinear" in type(layer(inputs).grad_fn).__name__
    for found, wanted in zip(results(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_same_bits_each_time() -> None:
    layer = nn.Linear(64, 96, bias=False)
    multiply_by_onednn(layer)
    inputs = torch.randn(1, 100, 64)
    first, second = (torch.autograd.grad(layer(inputs).square().sum(), layer.weight)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("device", "dtype", "available", "expected"),
    [
        ("cpu", DType.FLOAT32, True, True),
        ("cpu", DType.FLOAT32, False, False),
        ("cpu", DType.BFLOAT16, True, False),
        ("cuda", DType.FLOAT32, True, False),
    ],
)
def test_only_float32_on_cpus(*, device: str, dtype: DType, available: bool, expected: bool) -> None:
    assert uses_onednn(device, dtype, available=available) is expected
