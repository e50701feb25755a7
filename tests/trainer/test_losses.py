import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
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


OWNERS = [0, 0, 1, 2, 2, 2]
response_advantages = arrays(np.float64, 3, elements=st.floats(-3, 3))


@given(logs, logs)
def test_the_sequence_ratio_is_the_geometric_mean_of_a_responses_ratios(new: FloatArray, old: FloatArray) -> None:
    ratio = losses.sequence_ratio(torch.tensor(new), torch.tensor(old), torch.tensor(OWNERS), max(OWNERS) + 1)
    expected = [np.exp(np.mean([n - o for n, o, k in zip(new, old, OWNERS, strict=True) if k == i])) for i in OWNERS]
    np.testing.assert_allclose(ratio, expected, rtol=1e-9)


def gspo(new: FloatArray, old: FloatArray, advantages: FloatArray, low: float, high: float) -> float:
    """The published loss: one clipped ratio for each response."""
    total = 0.0
    for response, advantage in enumerate(advantages):
        tokens = [token for token, owner in enumerate(OWNERS) if owner == response]
        ratio = math.exp(np.mean(new[tokens] - old[tokens]))
        total -= min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return total


def slopes(function: Callable[[FloatArray], float], place: FloatArray, width: float) -> FloatArray:
    """The derivative by each entry, from central differences."""
    return np.array([(function(place + move) - function(place - move)) / (2 * width) for move in width * np.eye(6)])


@given(logs, logs, response_advantages, st.floats(0.01, 0.9), st.floats(0.01, 5))
def test_the_token_form_of_gspo_has_the_gradient_of_the_clipped_ratio_of_responses(
    new: FloatArray, old: FloatArray, advantages: FloatArray, low: float, high: float
) -> None:
    owners, logprobs, width = torch.tensor(OWNERS), torch.tensor(new, requires_grad=True), 1e-6
    ratio = losses.sequence_ratio(logprobs, torch.tensor(old), owners, int(owners.max()) + 1)
    bounds = (1 - low, 1 + high)
    assume(all(abs(value / bound - 1) > 2 * width for value in ratio.tolist() for bound in bounds))
    loss = losses.policy_loss(ratio, torch.tensor(advantages)[owners], low, high) / owners.bincount()[owners]
    loss.sum().backward()
    assert loss.sum().item() == pytest.approx(gspo(new, old, advantages, low, high), rel=1e-9, abs=1e-12)
    expected = slopes(lambda place: gspo(place, old, advantages, low, high), new, width)
    np.testing.assert_allclose(logprobs.grad, expected, rtol=1e-5, atol=1e-7 * max(1.0, ratio.max().item()))


@given(logs, logs, advantage_arrays, st.floats(0.01, 9))
def test_cispo_weights_log_probabilities_by_ratios_up_to_the_cap_and_has_no_lower_bound(
    new: FloatArray, old: FloatArray, advantages: FloatArray, high: float
) -> None:
    logprobs = torch.tensor(new, requires_grad=True)
    ratio = losses.probability_ratio(logprobs, torch.tensor(old))
    loss = losses.capped_weight_loss(logprobs, ratio, torch.tensor(advantages), high)
    loss.sum().backward()
    weights = np.minimum(np.exp(new - old), 1 + high)
    np.testing.assert_allclose(loss.detach(), -weights * advantages * new, rtol=1e-9)
    expected = slopes(lambda place: -(weights * advantages * place).sum(), new, 1e-4)
    np.testing.assert_allclose(logprobs.grad, expected, rtol=1e-6, atol=1e-7)


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


@given(logs, logs, advantage_arrays, st.floats(1.01, 10))
def test_dual_clip_bounds_loss_and_gradient_of_negative_advantages_only(
    new: FloatArray, old: FloatArray, advantages: FloatArray, limit: float
) -> None:
    logprobs, given = torch.tensor(new, requires_grad=True), torch.tensor(advantages)
    ratio = losses.probability_ratio(logprobs, torch.tensor(old))
    single = losses.policy_loss(ratio, given, 0.2, 0.2)
    double = losses.dual_clip(single, given, limit)
    double.sum().backward()
    beyond = (given < 0) & (ratio > limit)
    assert torch.equal(double[~beyond], single[~beyond])
    assert (double[given < 0] <= limit * given[given < 0].abs()).all()
    assert not logprobs.grad[beyond].any()
    largest = max(limit, 1.2) * given.abs()
    assert (logprobs.grad.abs() <= largest * (1 + 1e-9)).all(), "no token outweighs the others"


@given(logs, logs, st.floats(0.1, 0.9), st.floats(1.1, 10))
def test_an_importance_mask_keeps_the_ratios_within_its_bounds(
    trainer: FloatArray, engine: FloatArray, low: float, high: float
) -> None:
    old = torch.tensor(trainer, requires_grad=True)
    kept = losses.importance_mask(old, torch.tensor(engine), low, high)
    assert kept.tolist() == [low <= math.exp(t - e) <= high for t, e in zip(trainer, engine, strict=True)]


@given(logs, logs, st.floats(0.1, 0.9), st.floats(1.1, 10))
def test_a_sequence_mask_keeps_or_leaves_out_whole_responses(
    trainer: FloatArray, engine: FloatArray, low: float, high: float
) -> None:
    owners = [0, 0, 1, 2, 2, 2]
    kept = losses.sequence_mask(
        torch.tensor(trainer), torch.tensor(engine), torch.tensor(owners), max(owners) + 1, low, high
    )
    totals = [math.fsum((trainer - engine)[[o == owner for o in owners]]) for owner in owners]
    certain = [abs(total - math.log(bound)) > 1e-9 for total in totals for bound in (low, high)]
    if all(certain):
        assert kept.tolist() == [low <= math.exp(max(-20, min(20, total))) <= high for total in totals]


@pytest.mark.parametrize(("share_of_half", "passing"), [(0.25, 0.85), (1.0, 0.5), (10.0, 0.07)])
def test_half_of_all_responses_pass_the_sequence_mask_at_the_stated_product(
    share_of_half: float, passing: float
) -> None:
    """Tokens' probabilities are those of a model that has moved a little from the one that drew them."""
    generator = torch.Generator().manual_seed(0)
    responses, tokens, vocabulary = 4000, 50, 8
    engine = torch.randn(vocabulary, generator=generator, dtype=torch.float64).log_softmax(-1)
    direction = torch.randn(vocabulary, generator=generator, dtype=torch.float64)
    direction -= (engine.exp() * direction).sum()
    spread = (engine.exp() * direction**2).sum()
    wanted = share_of_half * losses.SEQUENCE_MASK_HALF / tokens
    trainer = (engine + direction * (2 * wanted / spread).sqrt()).log_softmax(-1)
    divergence = (engine.exp() * (engine - trainer)).sum().item()
    assert divergence == pytest.approx(wanted, rel=0.15)
    drawn = torch.multinomial(engine.exp(), responses * tokens, replacement=True, generator=generator)
    owners = torch.arange(responses).repeat_interleave(tokens)
    kept = losses.sequence_mask(trainer[drawn], engine[drawn], owners, int(owners.max()) + 1, 0.5, 2.0)
    assert kept.double().mean().item() == pytest.approx(passing, abs=0.06)
