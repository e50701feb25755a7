import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longboat_runtime.trainer.logprobs import CHUNK_ROWS, ChosenLogprobs


@pytest.mark.parametrize(
    ("temperature", "rows", "compiled"),
    [
        *((temperature, rows, False) for temperature in (1.0, 0.7) for rows in (1, 4, 100)),
        pytest.param(0.7, 4, True, marks=pytest.mark.extended),
    ],
)
def test_values_and_gradient_are_those_of_log_softmax(*, temperature: float, rows: int, compiled: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(11, 50, requires_grad=True)
    targets = torch.randint(0, 50, (11,))
    direction = torch.randn(11)
    reference = (logits / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (expected,) = torch.autograd.grad(reference @ direction, logits)

    logprobs, entropy = ChosenLogprobs.apply(logits, targets, temperature, rows, compiled, False)
    (gradient,) = torch.autograd.grad(logprobs @ direction, logits)

    torch.testing.assert_close(logprobs, reference)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logits / temperature).entropy())
    assert not entropy.requires_grad


def scored(
    logits: np.ndarray, targets: np.ndarray, temperature: float, chosen: np.ndarray, entropy: np.ndarray
) -> float:
    """In float64: the sum of log-probabilities times `chosen` and of entropies times `entropy`, one of each per row."""
    scaled = logits / temperature
    logprobs = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    own = np.take_along_axis(logprobs, targets[:, None], -1)[:, 0]
    return float(own @ chosen - (np.exp(logprobs) * logprobs).sum(-1) @ entropy)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_the_gradient_of_entropies_is_that_of_finite_differences(
    *, temperature: float, rows: int, compiled: bool
) -> None:
    random = np.random.default_rng(0)
    place, targets = random.normal(0, 2, (3, 7)), random.integers(0, 7, 3)
    chosen, entropy = random.normal(size=3), random.normal(size=3)
    width = 1e-5
    moves = width * np.eye(place.size).reshape(-1, *place.shape)
    values = [
        [scored(place + sign * move, targets, temperature, chosen, entropy) for sign in (1, -1)] for move in moves
    ]
    expected = np.array([(above - below) / (2 * width) for above, below in values]).reshape(place.shape)

    logits = torch.tensor(place, dtype=torch.float32, requires_grad=True)
    results = ChosenLogprobs.apply(logits, torch.tensor(targets), temperature, rows, compiled, True)
    sum(
        result @ torch.tensor(weights).float() for result, weights in zip(results, (chosen, entropy), strict=True)
    ).backward()
    np.testing.assert_allclose(logits.grad, expected, rtol=1e-4, atol=1e-6)


def test_without_weights_entropies_change_no_bit_of_values_and_little_of_the_gradient() -> None:
    torch.manual_seed(0)
    logits, targets, direction = torch.randn(11, 50, requires_grad=True), torch.randint(0, 50, (11,)), torch.randn(11)
    plain, entropy = ChosenLogprobs.apply(logits, targets, 0.7, 4, False, False)
    logprobs, carried = ChosenLogprobs.apply(logits, targets, 0.7, 4, False, True)
    assert torch.equal(plain, logprobs)
    assert torch.equal(entropy, carried)
    expected, gradient = (torch.autograd.grad(of @ direction, logits)[0] for of in (plain, logprobs))
    torch.testing.assert_close(gradient, expected)


class LiveBytes(TorchDispatchMode):
    """Measures the most bytes of tensors that operations within the block have made and that are alive together."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._tensors = 0, list[weakref.ref[torch.Tensor]]()

    def __torch_dispatch__(
        self, function: Any, _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._tensors += [weakref.ref(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for reference in self._tensors
            if (tensor := reference()) is not None
        }
        self.most = max(self.most, sum(storages.values()))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_entropies_needs_no_more_memory(dtype: torch.dtype) -> None:
    rows, vocabulary = 16, 4096
    logits = torch.randn(8 * rows, vocabulary).to(dtype).requires_grad_()
    targets = torch.zeros(8 * rows, dtype=torch.int64)
    most = {}
    for entropies in (False, True):
        results = ChosenLogprobs.apply(logits, targets, 0.7, rows, False, entropies)
        total = results[0].sum() + (results[1].sum() if entropies else 0)
        with LiveBytes() as live:
            total.backward()
        most[entropies] = live.most
        logits.grad = None
    assert most[False] > logits.nbytes
    assert most[True] <= most[False] + rows * 100, "nothing but what has one entry per row"


def test_bfloat16_logits_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 1000).bfloat16().requires_grad_()
    targets = torch.arange(5)
    logprobs, _ = ChosenLogprobs.apply(logits, targets, 1.0, CHUNK_ROWS, False, False)
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1)[torch.arange(5), targets])
    logprobs.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_impossible_tokens_have_no_entropy() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]], requires_grad=True)
    _, entropy = ChosenLogprobs.apply(logits, torch.tensor([0]), 1.0, CHUNK_ROWS, False, True)
    assert entropy.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
    entropy.sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 3))
