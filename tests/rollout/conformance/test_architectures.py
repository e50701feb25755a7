"""Models of many families: trainer and engine agree on every one after every publication, also when it has been trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.weights.publication import WeightPublication
from tests.rollout.conformance.hosted import HostedEngine
from tests.rollout.conformance.test_engine import run
from tests.rollout.reference import PROBE, request
from tests.support.architectures import tiny_config
from tests.support.publications import pack
from tests.support.tiny_model import save_random_model
from tests.trainer.trainer_world import fetch_from, make_request, make_spec, only_rank

FAMILIES = (
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "stablelm",
)
TOKENS = 16


def config(name: str, model: Path) -> EngineConfig:
    return EngineConfig(name, str(model), "float32", 8, (0,), 128, kv_cache_bytes=2**24, enforce_eager=True)


def publication(rank: TrainerRank, version: int) -> WeightPublication:
    packed = pack(rank.weights())
    return WeightPublication(version, packed, PROBE, tuple(rank.probe(PROBE)))


@pytest.mark.parametrize(
    "architecture",
    ["qwen2_moe", *(pytest.param(name, marks=pytest.mark.extended) for name in FAMILIES)],
)
def test_trainer_and_engine_agree_after_every_publication(
    in_process: HostedEngine, architecture: str, tmp_path: Path
) -> None:
    model = save_random_model(AutoModelForCausalLM.from_config, tiny_config(architecture), tmp_path / "model")
    in_process.replace(config(architecture, model))
    spec = make_spec(model, rollout={"sampling": {"maxTokens": TOKENS}}, trainer={"optimizer": {"learningRate": 1e-3}})
    with only_rank(spec) as rank:
        before = {name: value.clone() for name, value in rank.weights()}
        for step in (1, 2):
            assert in_process.update_weights(publication(rank, step - 1)) < 1e-4
            asked = [request(row, index, tokens=TOKENS, attempt=step) for row in range(2) for index in range(4)]
            samples = [sample for _, sample in sorted(run(in_process, asked).items())]
            report = rank.train(make_request(samples, step), fetch_from(samples))
            assert report.metrics["training/rollout_probs_diff_max"] < 1e-4
        assert in_process.update_weights(publication(rank, 2)) < 1e-4
        after = dict(rank.weights())
    assert before.keys() == after.keys()
    assert not all(torch.equal(before[name], after[name]) for name in before), "something was learned"


@pytest.mark.parametrize(
    "architecture",
    ["qwen2_moe", *(pytest.param(name, marks=pytest.mark.extended) for name in FAMILIES)],
)
def test_the_first_publication_makes_an_engine_equal_to_one_that_read_the_files(
    in_process: HostedEngine, architecture: str, tmp_path: Path
) -> None:
    """It starts with weights that mean nothing."""
    model = save_random_model(AutoModelForCausalLM.from_config, tiny_config(architecture), tmp_path / "model")
    in_process.replace_reading_files(config(architecture, model))
    from_files = in_process.probe(PROBE)
    in_process.replace(config(architecture, model))
    meaningless = in_process.probe(PROBE)
    with only_rank(make_spec(model)) as rank:
        in_process.update_weights(publication(rank, 0))
    published = in_process.probe(PROBE)
    assert max(abs(a - b) for a, b in zip(published, from_files, strict=True)) < 1e-6
    assert max(abs(a - b) for a, b in zip(meaningless, from_files, strict=True)) > 1e-3
