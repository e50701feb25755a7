import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from longboat_runtime.trainer import losses

FloatArray = npt.NDArray[np.float64]
logs = arrays(np.float64, 6, elements=st.floats(-12, -0.01))
# The product with a ratio of at least e^-12 is no zero.
advantage_arrays = arrays(
    np.float64, 6, elements=st.floats(-3, 3).filter(lambda value: value == 0 or abs(value) > 1e-300)
)


@given(logs, logs, advantage_arrays, st.floats(0.01, 0.9), st.floats(0.01, 5))
def test_policy_loss_is_ppos(new: FloatArray, old: FloatArray, advantages: FloatArray, low: float, high: float) -> None:
    expected = []
    for n, o, a in zip(new, old, advantages, strict=True):
        ratio = np.exp(np.clip(n - o, -20, 20))
        expected.append(-min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a))
    ratio = losses.probability_ratio(torch.tensor(new), torch.tensor(old))
    result = losses.policy_loss(ratio, torch.tensor(advantages), low, high)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-10, atol=1e-12)


@given(logs, logs, advantage_arrays, st.floats(0.01, 0.9), st.floats(0.01, 5))
def test_clipped_tokens_are_those_without_gradient(
    new: FloatArray, old: FloatArray, advantages: FloatArray, low: float, high: float
) -> None:
    logprobs = torch.tensor(new, requires_grad=True)
    ratio = losses.probability_ratio(logprobs, torch.tensor(old))
    losses.policy_loss(ratio, torch.tensor(advantages), low, high).sum().backward()
    clipped = losses.clipped(ratio, torch.tensor(advantages), low, high)
    assert not logprobs.grad[clipped].any()
    assert logprobs.grad[~clipped & (torch.tensor(advantages) != 0)].abs().gt(0).all()


def test_without_off_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    ratio = losses.probability_ratio(logprobs, logprobs.detach())
    losses.policy_loss(ratio, torch.tensor([0.5, -2.0]), 0.2, 0.2).sum().backward()
    assert logprobs.grad.tolist() == [-0.5, 2.0]


@given(logs, logs)
def test_k3(new: FloatArray, reference: FloatArray) -> None:
    delta = np.clip(reference - new, -20, 20)
    result = losses.k3(torch.tensor(new), torch.tensor(reference)).numpy()
    np.testing.assert_allclose(result, np.exp(delta) - 1 - delta, rtol=1e-9, atol=1e-12)
    assert (result >= -1e-12).all()


def test_k3_estimates_the_kl_divergence() -> None:
    model, reference = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    expectation = (model * losses.k3(model.log(), reference.log())).sum()
    assert expectation.item() == pytest.approx((model * (model / reference).log()).sum().item())


@given(logs, logs, st.floats(0.1, 10))
def test_importance_weight_is_the_truncated_ratio_without_gradient(
    trainer: FloatArray, engine: FloatArray, cap: float
) -> None:
    old = torch.tensor(trainer, requires_grad=True)
    weight = losses.importance_weight(old, torch.tensor(engine), cap)
    np.testing.assert_allclose(weight.numpy(), np.minimum(np.exp(trainer - engine), cap), rtol=1e-10)
    assert not weight.requires_grad
