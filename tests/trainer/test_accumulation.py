"""Ranks accumulate the gradient of one, and none holds more of it than its shard and a layer or two."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from bench.memory.allocations import Allocations
from longboat_runtime.trainer.rank import TrainerRank
from tests.trainer.test_architectures import EXPERTS, SHAPE
from tests.trainer.trainer_world import (
    fetch_from,
    full,
    local,
    make_request,
    make_samples,
    make_spec,
    only_rank,
    run_ranks,
)

SAMPLES = make_samples(24, longest=12)
LAYERS = 16
RANKS = 4
SECTIONS = {"rollout": {"sampling": {"maxTokens": 12}}, "trainer": {"maxTokensPerBin": 24}}


def accumulate(rank: TrainerRank) -> int:
    """All of SAMPLES in several bins on every rank; says in how many."""
    request = make_request(SAMPLES)
    _, [batches, *_] = rank._minibatches(request, fetch_from(SAMPLES))
    rank.updates.accumulate(batches, None, None)
    return len(batches)


def record_gradients(rank: TrainerRank, directory: Path) -> None:
    """Of every model in `directory`, with and without recomputing layers."""
    found = {}
    for model in sorted((directory / "models").iterdir()):
        for checkpointing in (False, True):
            trainer = SECTIONS["trainer"] | {"gradientCheckpointing": checkpointing}
            rank.spec = make_spec(model, **SECTIONS | {"trainer": trainer})
            rank.load()
            assert accumulate(rank) > 1
            found[f"{model.name}, {checkpointing=}"] = {
                name: full(weight.grad) for name, weight in rank.updates.parameters.items()
            }
    if rank.rank == 0:
        torch.save(found, directory / f"of-{rank.world_size}")


def record_memory(rank: TrainerRank, directory: Path) -> None:
    with Allocations() as allocations:
        bins = accumulate(rank)
    torch.save(
        {
            "largest": allocations.largest,
            "peak": allocations.peak,
            "held": allocations.bytes_held(),
            "bins": bins,
            "shards": sum(local(weight).nbytes for weight in rank.updates.parameters.values()),
            "layer": sum(weight.numel() * 4 for weight in rank.model.model.layers[0].parameters()),
        },
        directory / f"memory-{rank.rank}",
    )


def leave_a_weight_out(rank: TrainerRank, directory: Path) -> None:
    """As experts that no token of this rank goes through."""
    if rank.rank == 1:
        rank.model.model.layers[0].mlp.forward = lambda hidden: hidden
    accumulate(rank)
    gradients = {name: full(weight.grad) for name, weight in rank.updates.parameters.items()}
    assert gradients["model.layers.0.mlp.up_proj.weight"].norm() > 0
    (directory / f"rank-{rank.rank}-done").touch()


MODELS = {
    "own output embedding": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=False)),
    "tied embeddings": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "experts that few tokens reach": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, **EXPERTS | {"num_experts": 32, "num_experts_per_tok": 1})
    ),
}


@pytest.mark.parametrize("ranks", [2, pytest.param(RANKS, marks=pytest.mark.extended)])
def test_ranks_have_the_gradient_of_one_weight_by_weight(ranks: int, tmp_path: Path) -> None:
    for name, build in MODELS.items():
        torch.manual_seed(0)
        build().save_pretrained(tmp_path / "models" / name)
    spec = make_spec(tmp_path / "models" / "tied embeddings", **SECTIONS)
    with only_rank(spec) as rank:
        record_gradients(rank, tmp_path)
    run_ranks(ranks, record_gradients, spec, tmp_path)
    one, several = (torch.load(tmp_path / f"of-{count}") for count in (1, ranks))
    assert len(one) == 2 * len(MODELS)
    for case, gradients in one.items():
        for weight, gradient in gradients.items():
            assert (several[case][weight] - gradient).norm() <= 1e-5 * gradient.norm(), f"{case}: {weight}"


@pytest.mark.extended
def test_a_rank_holds_a_few_layers_besides_its_shards_of_the_gradient_not_the_model(tmp_path: Path) -> None:
    shape = SHAPE | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS}
    Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False)).save_pretrained(tmp_path / "model")
    trainer = SECTIONS["trainer"] | {"gradientCheckpointing": True}
    spec = make_spec(tmp_path / "model", **SECTIONS | {"trainer": trainer})
    run_ranks(RANKS, record_memory, spec, tmp_path)
    for number in range(RANKS):
        rank = torch.load(tmp_path / f"memory-{number}")
        assert rank["bins"] > 1
        assert rank["largest"] <= 1.05 * rank["layer"]
        # Two layers' weights and one's gradient, each as it travels and as it is used, and what is kept of a bin.
        assert rank["peak"] <= rank["shards"] + 6 * rank["layer"]
        assert rank["held"] <= 1.05 * rank["shards"]


def test_ranks_reduce_together_when_no_token_of_one_went_through_a_weight(tmp_path: Path) -> None:
    MODELS["tied embeddings"]().save_pretrained(tmp_path / "model")
    run_ranks(2, leave_a_weight_out, make_spec(tmp_path / "model", **SECTIONS), tmp_path)
    assert len(list(tmp_path.glob("rank-*-done"))) == 2
