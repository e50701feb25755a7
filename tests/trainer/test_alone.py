"""A rank that is alone does without FSDP2 and computes the same."""

from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from longboat_crds.model import DType
from longboat_runtime.checkpoint import sharded
from longboat_runtime.trainer import sharding
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.checkpoints import described
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank

SAMPLES = make_samples(9)


def weights(rank: TrainerRank) -> torch.Tensor:
    return torch.cat([full(weight).detach().flatten() for weight in rank.updates.parameters.values()])


def test_a_rank_that_is_alone_computes_the_same_bits_without_fsdp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each reads what the other has saved."""
    found = {}
    spec = make_spec(build_tiny_model(tmp_path / "model", hidden=64), algorithm={"klCoefficient": 0.1})
    for wanted, other in ((True, False), (False, True)):
        monkeypatch.setattr(sharding, "needs_fsdp", lambda *_, wanted=wanted: wanted)
        with only_rank(spec) as rank:
            assert isinstance(rank.model, FSDPModule) is wanted
            first = rank.train(make_request(SAMPLES), fetch_from(SAMPLES)).metrics["actor/grad_norm"]
            sharded.write(rank.snapshot(), tmp_path / f"fsdp-{wanted}")
            rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
            found[wanted] = (first, weights(rank))
        monkeypatch.setattr(sharding, "needs_fsdp", lambda *_, other=other: other)
        with only_rank(spec) as rank:
            rank.restore(tmp_path / f"fsdp-{wanted}", described(tmp_path / f"fsdp-{wanted}"))
            rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
            assert torch.equal(weights(rank), found[wanted][1])
    assert found[True][0] == found[False][0]
    assert torch.equal(found[True][1], found[False][1])


@pytest.mark.parametrize(
    ("ranks", "dtype", "needed"),
    [(1, DType.FLOAT32, False), (2, DType.FLOAT32, True), (1, DType.BFLOAT16, True), (1, DType.FLOAT16, True)],
)
def test_fsdp_shards_and_does_the_arithmetic_of_shorter_formats(*, ranks: int, dtype: DType, needed: bool) -> None:
    assert sharding.needs_fsdp(ranks, dtype) is needed
