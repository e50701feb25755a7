"""Architectures beyond the plain one load, train, and give back the weights of their files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from bench.memory.allocations import Allocations
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.actor import TrainerActor
from tests.support.architectures import tiny_config
from tests.trainer.trainer_world import VOCABULARY, fetch_from, make_request, make_samples, make_spec, only_rank

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SAMPLES = make_samples(4)


def models() -> dict[str, PreTrainedModel]:
    return {
        "own output embedding": Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=False)),
        "fused experts": Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS)),
        "files name the head otherwise": GPTNeoXForCausalLM(tiny_config("gpt_neox")),
        "learned positions": GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128)
        ),
    }


@pytest.mark.parametrize(
    "name", ["own output embedding", "fused experts", "files name the head otherwise", "learned positions"]
)
def test_weights_go_in_and_come_out_under_the_names_of_the_file(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    models()[name].save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    with only_rank(make_spec(tmp_path)) as rank:
        published = dict(rank.weights())
        assert published.keys() == stored.keys()
        assert all(torch.equal(published[key], stored[key]) for key in stored)
        assert rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize("name", ["own output embedding", "fused experts", "learned positions"])
def test_what_was_not_trained_is_exported_as_it_came(tmp_path: Path, name: str) -> None:
    models()[name].save_pretrained(tmp_path / "model")
    actor = TrainerActor(make_spec(tmp_path / "model"), 0, 1, store=None)
    try:
        actor.load(process_group.serve("127.0.0.1"))
        actor.export(tmp_path / "export", tmp_path / ".export.1.partial")
    finally:
        process_group.leave()
    given, exported = (load_file(tmp_path / folder / "model.safetensors") for folder in ("model", "export"))
    assert exported.keys() == given.keys()
    assert all(torch.equal(exported[key], given[key]) for key in given)


def test_an_export_that_fails_leaves_no_rank_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take part in gathering all weights, so rank 0 has to as well."""
    models()["fused experts"].save_pretrained(tmp_path / "model")
    actor = TrainerActor(make_spec(tmp_path / "model"), 0, 1, store=None)
    gathered = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    try:
        actor.load(process_group.serve("127.0.0.1"))
        weights = [*actor._trainer.weights()]
        monkeypatch.setattr(actor._trainer, "weights", lambda: (gathered.append(each) or each for each in weights))
        monkeypatch.setattr("longboat_runtime.checkpoint.export._write_file", full)
        monkeypatch.setattr("longboat_runtime.checkpoint.export.FILE_BYTES", 1)
        with pytest.raises(OSError, match="No space"):
            actor.export(tmp_path / "export", tmp_path / ".export.1.partial")
    finally:
        process_group.leave()
    assert len(gathered) == len(weights) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_weights_of_experts_are_gathered_layer_by_layer(tmp_path: Path) -> None:
    layers = 8
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE | {"num_hidden_layers": layers}, **EXPERTS | {"num_experts": 32})
    )
    model.save_pretrained(tmp_path)
    layer = sum(weight.nbytes for weight in model.model.layers[0].parameters())
    with only_rank(make_spec(tmp_path)) as rank:
        with Allocations() as allocations:
            for _ in rank.weights():
                pass
        # As the model holds them, and as the files do.
        assert allocations.peak < 3 * layer
