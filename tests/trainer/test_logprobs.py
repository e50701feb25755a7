import pytest
import torch

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

    logprobs, entropy = ChosenLogprobs.apply(logits, targets, temperature, rows, compiled)
    (gradient,) = torch.autograd.grad(logprobs @ direction, logits)

    torch.testing.assert_close(logprobs, reference)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logits / temperature).entropy())
    assert not entropy.requires_grad


def test_bfloat16_logits_are_summed_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 1000).bfloat16().requires_grad_()
    targets = torch.arange(5)
    logprobs, _ = ChosenLogprobs.apply(logits, targets, 1.0, CHUNK_ROWS, False)
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1)[torch.arange(5), targets])
    logprobs.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


def test_impossible_tokens_have_no_entropy() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    _, entropy = ChosenLogprobs.apply(logits, torch.tensor([0]), 1.0, CHUNK_ROWS, False)
    assert entropy.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
