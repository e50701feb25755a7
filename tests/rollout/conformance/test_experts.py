"""Mixtures of experts: after an update the engine computes with what was published, and a receipt says if it can't."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.trainer.full_weights import full_weights
from longboat_runtime.weights.gate import PublicationRefused
from tests.rollout.conformance.conftest import KINDS
from tests.rollout.conformance.hosted import HostedEngine
from tests.rollout.conformance.test_engine import run
from tests.rollout.reference import ReferenceModel, request
from tests.support.publications import pack
from tests.support.tiny_model import build_tiny_experts

pytestmark = pytest.mark.extended

# vLLM's kernel on CPU takes multiples of 32 and pads other sizes.
EXPERT_SIZES = {"in-process": 32, "in-process-tp2": 64, "spawned": 48}


@pytest.fixture(scope="module", params=sorted(KINDS))
def experts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedEngine]:
    tensor_parallel, spawned = KINDS[request.param]
    directory = build_tiny_experts(tmp_path_factory.mktemp("model"), expert_size=EXPERT_SIZES[request.param])
    config = EngineConfig(
        request.param,
        str(directory),
        "float32",
        8,
        tuple(range(tensor_parallel)),
        512,
        kv_cache_bytes=2**22,
        enforce_eager=True,
    )
    engine = HostedEngine(config, spawned=spawned)
    try:
        engine.wait_started()
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def trainer(experts: HostedEngine) -> ReferenceModel:
    return ReferenceModel(experts.model)


def test_the_same_bytes_change_nothing(experts: HostedEngine, trainer: ReferenceModel) -> None:
    parities = [experts.update_weights(trainer.publication()) for _ in range(3)]
    assert max(parities) < 1e-5
    assert len(set(parities)) == 1


def test_changed_weights_are_computed_with(experts: HostedEngine, trainer: ReferenceModel) -> None:
    for _ in range(2):
        trainer.step(0.02)
        assert experts.update_weights(trainer.publication()) < 1e-5
        for sample in run(experts, [request(row) for row in range(4)]).values():
            assert trainer.difference(sample) < 1e-4


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ("model.layers.0.mlp.experts.1.up_proj.weight", r"layers\.0\.mlp\.experts.* of .* values"),
        ("model.layers.1.self_attn.k_proj.weight", r"layers\.1\.self_attn\.qkv_proj\.weight \(without part k\)"),
        ("model.norm.weight", r"model\.norm\.weight"),
    ],
)
def test_a_tensor_that_never_came_is_named(
    experts: HostedEngine, trainer: ReferenceModel, left_out: str, named: str
) -> None:
    """Bytes and checksum agree, and vLLM counts a parameter as loaded once part of it is."""
    whole = trainer.publication()
    partial = pack((name, value) for name, value in full_weights(trainer.model, torch.float32) if name != left_out)
    with pytest.raises(PublicationRefused, match=named):
        experts.update_weights(replace(whole, payload=partial))
    assert experts.update_weights(trainer.publication()) < 1e-5


def test_weights_that_are_computed_with_wrongly_are_named(experts: HostedEngine, trainer: ReferenceModel) -> None:
    """The last test of an engine: it is broken."""
    stale = trainer.stale_publication(step=0.02)
    with pytest.raises(PublicationRefused, match=r"all [0-9]+ tensors that could be compared are the published ones"):
        experts.update_weights(stale)
    if experts.name != "in-process":
        return  # the others can't be broken from here
    experts.pack_experts_no_more()
    with pytest.raises(
        PublicationRefused, match=r"8 of [0-9]+ tensors .* furthest are model\.layers\.[01]\.mlp\.experts\.[0-3] "
    ):
        experts.update_weights(trainer.publication())
