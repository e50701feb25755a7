"""Packed samples have the log-probs they have alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.batch import PackedBatch, WeightedSample, pack_batch
from longboat_runtime.trainer.forward import packed_logprobs
from tests.trainer.trainer_world import VOCABULARY, make_samples

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral with a window of 8": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    attention.register()
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def batch_of(samples: Sequence[GeneratedSample]) -> PackedBatch:
    return pack_batch([WeightedSample(sample, 0.0, 1.0) for sample in samples], torch.device("cpu"))


def alone(model: PreTrainedModel, sample: GeneratedSample) -> Tensor:
    """The model's own forward, nothing of ours."""
    model.set_attn_implementation("eager")
    tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
    logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
    start = len(sample.prompt_ids)
    return logprobs[start - 1 : -1].gather(-1, tokens[start:, None])[:, 0]


def packed(model: PreTrainedModel, samples: Sequence[GeneratedSample]) -> Tensor:
    model.set_attn_implementation(attention.NAME)
    return packed_logprobs(model, batch_of(samples))[0]


def gradients(model: PreTrainedModel, logprobs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, len(logprobs))
    return torch.autograd.grad(logprobs @ weights, list(model.parameters()))


def test_packed_equals_alone(model: PreTrainedModel) -> None:
    samples = make_samples(7)
    torch.testing.assert_close(
        packed(model, samples), torch.cat([alone(model, sample) for sample in samples]), atol=1e-5, rtol=0
    )


def test_gradients_too(model: PreTrainedModel) -> None:
    samples = make_samples(5)
    together = gradients(model, packed(model, samples))
    apart = gradients(model, torch.cat([alone(model, sample) for sample in samples]))
    for first, second in zip(together, apart, strict=True):
        assert (first - second).norm() <= 1e-5 * (1 + second.norm())


def test_a_sample_sees_nothing_of_its_neighbours(model: PreTrainedModel) -> None:
    first, second, third = make_samples(3)
    _, other, _ = make_samples(3, seed=9)
    before = packed(model, [first, second, third])
    after = packed(model, [first, other, third])
    count, last = len(first.token_ids), len(third.token_ids)
    assert torch.equal(before[:count], after[:count])
    assert torch.equal(before[-last:], after[-last:])


def test_an_empty_batch_counts_nothing(model: PreTrainedModel) -> None:
    model.set_attn_implementation(attention.NAME)
    batch = pack_batch([], torch.device("cpu"))
    assert batch.weights.tolist() == [0.0]
    assert torch.isfinite(packed_logprobs(model, batch)[0]).all()


def test_positions_restart_and_targets_are_the_response_tokens() -> None:
    samples = make_samples(3)
    batch = batch_of(samples)
    flat = [int(t) for sample in samples for t in (*sample.prompt_ids, *sample.token_ids)]
    assert batch.input_ids[0].tolist() == flat
    assert batch.targets.tolist() == [int(t) for sample in samples for t in sample.token_ids]
    assert batch.input_ids[0][batch.predicting + 1].tolist() == batch.targets.tolist()
    assert batch.position_ids[0].tolist() == [p for length in batch.lengths for p in range(length)]
    assert batch.engine_logprobs.tolist() == [float(v) for sample in samples for v in sample.logprobs]
