"""Log-probs without logits: what they are, what they take, and which models have them."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from bench.memory.allocations import Allocations
from longboat_runtime.trainer import attention, fused_head, sharding
from longboat_runtime.trainer.batch import SampleBatch, WeightedSegment, build_batch
from longboat_runtime.trainer.forward import response_logprobs
from longboat_runtime.trainer.machine import MACHINE, Machine
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.self_check import head_can_be_fused
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank, run_ranks

OWN, FUSED = 2**40, 0
VOCABULARY = 264
# Bins of this size could have logits of more than LARGEST_LOGITS; what tests train has far fewer tokens.
LARGE_BINS = {"maxTokensPerBin": 2**23}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_head, "ROWS", 16)
    attention.register()


def batch_of(count: int) -> SampleBatch:
    return build_batch([WeightedSegment(sample, 1.0, 1.0) for sample in make_samples(count)], torch.device("cpu"))


def marked(model: torch.nn.Module) -> torch.nn.Module:
    """The model with the mark that one on GPUs gets, so that its head is fused on CPUs too."""
    setattr(model, fused_head.ROW_BYTES, VOCABULARY * 4)
    return model


def results(model: torch.nn.Module, batch: SampleBatch, limit: int, *, entropies: bool) -> list[torch.Tensor]:
    """Log-probs, entropies, and the gradients of a sum of them by all weights."""
    model.zero_grad()
    logprobs, entropy = response_logprobs(
        model, batch, 0.7, platform=MACHINE, entropies=entropies, largest_logits=limit
    )
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert entropy.requires_grad is entropies
    loss = logprobs @ torch.linspace(-1, 1, len(logprobs))
    (loss + entropy.sum() if entropies else loss).backward()
    gradients = [full(weight.grad).clone() for weight in model.parameters()]
    return [logprobs.detach(), entropy.detach(), *gradients]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_log_probs_and_gradients_are_those_of_the_models_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fsdp: bool, tied: bool
) -> None:
    monkeypatch.setattr(sharding, "needs_fsdp", lambda *_: fsdp)
    model = build_tiny_model(tmp_path / "model", hidden=64, tied=tied)
    with only_rank(make_spec(model)) as rank:
        marked(rank.model)
        for entropies in (False, True):
            own, fused = (results(rank.model, batch_of(9), limit, entropies=entropies) for limit in (OWN, FUSED))
            assert_equal(fused, own)


def compare_on_two_ranks(rank: TrainerRank, _: Path) -> None:
    batch = batch_of(3 + rank.rank)
    marked(rank.model)
    assert_equal(*(results(rank.model, batch, limit, entropies=False) for limit in (FUSED, OWN)))


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.extended), True])
def test_ranks_reduce_the_gradient_of_the_head(tmp_path: Path, *, tied: bool) -> None:
    model = build_tiny_model(tmp_path / "model", hidden=64, tied=tied)
    run_ranks(2, compare_on_two_ranks, make_spec(model), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_nothing_is_larger_than_a_chunk_of_logits_or_the_gradient_of_the_weight(
    dtype: torch.dtype, *, tied: bool
) -> None:
    vocabulary, hidden = 5000, 32
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    setattr(model, fused_head.ROW_BYTES, vocabulary * dtype.itemsize)
    batch, bound = batch_of(9), max(fused_head.ROWS * vocabulary * 4, vocabulary * hidden * 4)
    assert len(batch.targets) > 4 * fused_head.ROWS
    for entropies in (False, True):
        with Allocations() as allocations:
            results(model, batch, FUSED, entropies=entropies)
        assert allocations.largest <= bound
    with Allocations() as allocations:
        results(model, batch, OWN, entropies=False)
    assert allocations.largest > bound, "it would be noticed"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(Qwen3Config(), True, id="Qwen 3"),
        pytest.param(Qwen3MoeConfig(num_experts=8), True, id="Qwen 3, experts"),
        pytest.param(LlamaConfig(), True, id="Llama"),
        pytest.param(GPT2Config(), True, id="GPT-2, tied"),
        pytest.param(Gemma3TextConfig(), True, id="Gemma 3"),
        pytest.param(Gemma3TextConfig(final_logit_softcapping=30.0), False, id="a soft cap on logits"),
        pytest.param(Gemma2Config(), False, id="Gemma 2, which has that cap"),
        pytest.param(GraniteConfig(logits_scaling=8.0), False, id="Granite, which divides logits"),
        pytest.param(GraniteConfig(logits_scaling=1.0), True, id="Granite that divides by one"),
        pytest.param(CohereConfig(), False, id="Cohere, which multiplies logits"),
        pytest.param(Cohere2Config(), False, id="Cohere 2, which does so too"),
        pytest.param(PhiConfig(), False, id="Phi, whose head has a bias"),
    ],
)
def test_models_that_change_logits_after_their_head_keep_it(config: PretrainedConfig, *, expected: bool) -> None:
    assert head_can_be_fused(config, MACHINE) is expected


class Gpu(Machine):
    """This machine, taken for one with GPUs."""

    device = "cuda"


@pytest.mark.parametrize(
    ("machine", "trainer", "fuses"),
    [
        pytest.param(Gpu(), LARGE_BINS, True, id="large bins"),
        pytest.param(Gpu(), {}, False, id="small bins"),
        pytest.param(MACHINE, LARGE_BINS, False, id="large bins on CPUs, whose own product is faster"),
    ],
)
def test_it_is_prepared_where_a_bin_may_need_it_and_used_where_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, trainer: dict[str, int], *, fuses: bool
) -> None:
    used = []
    apply = fused_head.FusedHead.apply
    monkeypatch.setattr(fused_head.FusedHead, "apply", lambda *given: used.append(1) or apply(*given))
    model = build_tiny_model(tmp_path / "model", hidden=64)
    samples = make_samples(6)
    trainer = {**trainer, "compile": False}
    with only_rank(make_spec(model, trainer=trainer, algorithm={"klCoefficient": 0.1}), machine) as rank:
        for loaded in (rank.model, rank.updates.reference):
            assert hasattr(loaded, fused_head.ROW_BYTES) is fuses
        used.clear()  # the small model's check
        rank.train(make_request(samples), fetch_from(samples))
        assert not used, "small bins keep the model's head, whose logits are computed once"
        response_logprobs(rank.model, batch_of(3), platform=MACHINE, largest_logits=0)
        assert bool(used) is fuses


def test_logits_of_just_a_gibibyte_are_computed_once() -> None:
    assert not fused_head.exceeds(2**10, 2**20)
    assert fused_head.exceeds(2**10 + 1, 2**20)
