"""Tests what ranks gather for publications, at which sender, and how many bytes that takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM

from longboat_crds.model import DType
from longboat_runtime.trainer import full_weights
from longboat_runtime.trainer.publishing import RankPublisher
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import TORCH_DTYPES
from longboat_runtime.weights import layout
from tests.support.architectures import tiny_config
from tests.support.tiny_model import save_random_model
from tests.trainer.trainer_world import make_spec, run_ranks

RANKS = 3


def publish_and_record(rank: TrainerRank, directory: Path) -> None:
    """Publishes twice, in small buckets, from all ranks; each records what it sends, and what it received for that."""
    received: list[int] = []

    def counted(operations: list[dist.P2POp]) -> None:
        received.extend(each.tensor.nbytes for each in operations if each.op is dist.irecv)
        exchange(operations)

    exchange, full_weights._exchange = full_weights._exchange, counted
    layout.LEAST_BUCKET_BYTES = 2**14
    dtype = TORCH_DTYPES[rank.spec.model.dtype]
    publisher = RankPublisher(rank, range(RANKS))
    for version in range(2):
        publisher.begin(version)
        received.clear()
        publisher.gather()
    sent: dict[str, Tensor] = {}
    for number, bucket in enumerate(publisher.layout):
        if bucket.sender == rank.rank:
            assert publisher.sender is not None
            with publisher.sender.reading(1, number) as (read, _):
                sent |= {name: tensor.clone() for name, tensor in read.tensors()}
    expected = {name: value.clone() for name, value in full_weights.full_weights(rank.model, dtype)}
    torch.save(
        {"sent": sent, "expected": expected, "received": sum(received), "layout": publisher.layout},
        directory / f"record-{rank.rank}",
    )


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("qwen2_moe", "BFloat16"), pytest.param("gpt2", "Float32", marks=pytest.mark.extended)],
)
def test_each_tensor_is_gathered_at_one_sender_in_the_models_number_format(
    family: str, dtype: str, tmp_path: Path
) -> None:
    model = save_random_model(AutoModelForCausalLM.from_config, tiny_config(family), tmp_path / "model")
    spec = make_spec(model, trainer={"replicas": RANKS})
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": DType(dtype)})})
    run_ranks(RANKS, publish_and_record, spec, tmp_path)
    records = [torch.load(tmp_path / f"record-{rank}", weights_only=False) for rank in range(RANKS)]
    expected = records[0]["expected"]
    sent = [name for record in records for name in record["sent"]]
    assert sorted(sent) == sorted(expected), "each is sent once"
    for record in records:
        for name, value in record["sent"].items():
            assert value.dtype == expected[name].dtype
            assert torch.equal(value, expected[name])
        own = sum(value.nbytes for value in record["sent"].values())
        assert 0 < record["received"] <= own, "its part in the published number format, without its own shards"
        assert own <= 1.1 * sum(value.nbytes for value in expected.values()) / RANKS
