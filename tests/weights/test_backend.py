"""What a worker's receipt says of the buckets that it got, on a model of a few tensors that vLLM's reload handles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.models.utils import AutoWeightsLoader

from longboat_runtime.weights import backend
from longboat_runtime.weights.backend import BucketTransfer
from longboat_runtime.weights.gate import PublicationRefused, check_receipts
from tests.support.publications import Packed, pack


class Scaled(nn.Module):
    """A layer with a weight, a persistent buffer, and one that it computes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 4))
        self.register_buffer("scale", torch.zeros(3))
        self.register_buffer("table", torch.ones(2), persistent=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(3))
        self.config = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights)


@pytest.fixture(params=["handed over", "received"])
def way(request: pytest.FixtureRequest) -> str:
    """How buckets come: in memory of the host, or in that of the device, which the next bucket overwrites."""
    return str(request.param)


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> BucketTransfer:
    monkeypatch.setattr(BucketTransfer.__base__, "__init__", lambda self, *_: None)
    monkeypatch.setattr(backend, "_packed_experts", lambda model: iter(()))
    model = Model()
    record_metadata_for_reloading(model)
    made = BucketTransfer(None, None, torch.device("cpu"), model)  # type: ignore[arg-type]
    made.model, made.model_config = model, None  # type: ignore[assignment]
    return made


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(value.shape) for name, value in Model().state_dict().items()}


def receipt(transfer: BucketTransfer, payload: Packed, way: str) -> dict[str, Any]:
    transfer.start_weight_update()
    received = torch.empty(max(bucket.data.nbytes for bucket in payload.contents), dtype=torch.uint8)
    for bucket in payload.contents:
        entries = list(bucket.entries)
        if way == "received":
            data = received[: bucket.data.nbytes].copy_(torch.from_numpy(bucket.data))
            transfer.receive_weights(backend.BucketUpdate(entries, received=data))
        else:
            transfer.receive_weights(backend.BucketUpdate(entries, bucket.data))
    transfer.finish_weight_update()
    return transfer.receipt()


@pytest.mark.parametrize("limit", [64, 150, 10**6])
def test_all_weights_and_persistent_buffers_arrive(transfer: BucketTransfer, way: str, limit: int) -> None:
    published = tensors()
    payload = pack(published.items(), limit)
    check_receipts([receipt(transfer, payload, way)], payload.checksum)
    for name, value in transfer.model.state_dict().items():
        assert torch.equal(value, published[name])
    assert torch.equal(transfer.model.layers[0].table, torch.ones(2))


@pytest.mark.parametrize("name", ["layers.1.scale", "layers.2.weight"])
def test_what_never_came_is_named(transfer: BucketTransfer, way: str, name: str) -> None:
    published = tensors()
    del published[name]
    payload = pack(published.items(), 100)
    with pytest.raises(PublicationRefused, match=name):
        check_receipts([receipt(transfer, payload, way)], payload.checksum)


def stale(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Half of a weight is from before."""
    weights["layers.1.weight"][3:] = 0
    return [*weights.items()]


def doubled(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """A weight comes twice, and its neighbour not at all."""
    weights["layers.1.weight"] = weights["layers.0.weight"]
    return [*weights.items()]


def sent_twice(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [*weights.items(), *list(weights.items())[-1:]]


def swapped(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Two rows of a weight have changed places."""
    weights["layers.1.weight"] = weights["layers.1.weight"][[0, 2, 1, 3, 4, 5]]
    return [*weights.items()]


@pytest.mark.parametrize("damage", [stale, doubled, sent_twice, swapped])
def test_wrong_bytes_are_found(transfer: BucketTransfer, way: str, damage: Any) -> None:
    payload = pack(tensors().items(), 100)
    damaged = pack(damage(tensors()), 100)
    with pytest.raises(PublicationRefused, match="checksum"):
        check_receipts([receipt(transfer, damaged, way)], payload.checksum)
