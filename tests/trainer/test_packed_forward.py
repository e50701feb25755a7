"""Samples that go through the model together, packed or padded, have the log-probs and gradients that they have alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.batch import SampleBatch, WeightedSegment, build_batch
from longboat_runtime.trainer.forward import recurring_size, response_logprobs
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.self_check import choose_attention
from tests.support.architectures import ARCHITECTURES, tiny_config
from tests.trainer.trainer_world import make_samples

# A packed model, one with a window in some layers, and one with experts.
FEW = {"llama", "gemma3_text", "qwen2_moe"}


@pytest.fixture(
    params=[pytest.param(each, marks=[] if each in FEW else pytest.mark.extended) for each in ARCHITECTURES]
)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    attention.register()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(request.param), dtype=torch.float32).eval()


def batch_of(samples: Sequence[GeneratedSample], *, packed: bool) -> SampleBatch:
    return build_batch([WeightedSegment(sample, 0.0, 1.0) for sample in samples], torch.device("cpu"), packed=packed)


def alone(model: PreTrainedModel, sample: GeneratedSample) -> Tensor:
    """The model's own forward, nothing of ours."""
    model.set_attn_implementation("eager")
    tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
    logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
    start = len(sample.prompt_ids)
    return logprobs[start - 1 : -1].gather(-1, tokens[start:, None])[:, 0]


def together(model: PreTrainedModel, samples: Sequence[GeneratedSample]) -> Tensor:
    """As the trainer does it."""
    model.set_attn_implementation(choose_attention(model.config, MACHINE))
    return response_logprobs(model, batch_of(samples, packed=attention.packs(model)), platform=MACHINE)[0]


def gradients(model: PreTrainedModel, logprobs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, len(logprobs))
    return torch.autograd.grad(logprobs @ weights, list(model.parameters()))


def test_log_probs_are_those_of_single_samples(model: PreTrainedModel) -> None:
    samples = make_samples(9)
    torch.testing.assert_close(
        together(model, samples), torch.cat([alone(model, sample) for sample in samples]), atol=1e-5, rtol=0
    )


def test_neighbours_of_equal_length_are_computed_as_alone(model: PreTrainedModel) -> None:
    first, second, third = make_samples(3)
    samples = [first, first, second, third, third, third, first]
    torch.testing.assert_close(
        together(model, samples), torch.cat([alone(model, sample) for sample in samples]), atol=1e-5, rtol=0
    )


def test_the_samples_here_are_padded_to_a_recurring_size() -> None:
    for count in (6, 9):
        batch = batch_of(make_samples(count), packed=True)
        assert recurring_size(batch.input_ids.shape[1]) > batch.input_ids.shape[1]
        assert recurring_size(len(batch.predicting)) > len(batch.predicting)


@given(st.integers(1, 10**7))
def test_sizes_recur(size: int) -> None:
    padded = recurring_size(size)
    assert size <= padded <= size * 17 / 16
    assert recurring_size(padded) == padded
    assert len({recurring_size(between) for between in np.linspace(padded, 2 * padded, 200, dtype=int).tolist()}) <= 17


def test_gradients_too(model: PreTrainedModel) -> None:
    samples = make_samples(6)
    pairs = zip(
        gradients(model, together(model, samples)),
        gradients(model, torch.cat([alone(model, sample) for sample in samples])),
        strict=True,
    )
    assert all((first - second).norm() <= 1e-5 * (1 + second.norm()) for first, second in pairs)


def test_a_sample_sees_nothing_of_its_neighbours(model: PreTrainedModel) -> None:
    first, second, third = make_samples(3)
    _, other, _ = make_samples(3, seed=9)
    before = together(model, [first, second, third])
    after = together(model, [first, other, third])
    count, last = len(first.token_ids), len(third.token_ids)
    torch.testing.assert_close(before[:count], after[:count], atol=1e-6, rtol=0)
    torch.testing.assert_close(before[-last:], after[-last:], atol=1e-6, rtol=0)


def test_an_empty_batch_counts_nothing(model: PreTrainedModel) -> None:
    assert torch.isfinite(together(model, [])).all()
    assert batch_of([], packed=True).weights.tolist() == batch_of([], packed=False).weights.tolist() == [0.0]


def test_padding_stands_behind_the_sample_and_targets_are_the_response_tokens() -> None:
    samples = make_samples(3)
    batch = batch_of(samples, packed=False)
    for row, sample in zip(batch.input_ids.tolist(), samples, strict=True):
        tokens = [*sample.prompt_ids.tolist(), *sample.token_ids.tolist()]
        assert row == tokens + [0] * (len(row) - len(tokens))
    assert batch.input_ids.flatten()[batch.predicting + 1].tolist() == batch.targets.tolist()
    assert batch.targets.tolist() == [int(token) for sample in samples for token in sample.token_ids]


def test_positions_restart_and_targets_are_the_response_tokens() -> None:
    samples = make_samples(3)
    batch = batch_of(samples, packed=True)
    flat = [int(t) for sample in samples for t in (*sample.prompt_ids, *sample.token_ids)]
    assert batch.input_ids[0].tolist() == flat
    assert batch.targets.tolist() == [int(t) for sample in samples for t in sample.token_ids]
    assert batch.input_ids[0][batch.predicting + 1].tolist() == batch.targets.tolist()
    assert batch.position_ids[0].tolist() == [p for length in batch.lengths for p in range(length)]
    assert batch.engine_logprobs.tolist() == [float(v) for sample in samples for v in sample.logprobs]
