"""Weights that vLLM has loaded are found to be the published ones, by every worker."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor import parameter
from vllm.model_executor.layers import linear

from longboat_runtime.weights.differences import WeightDifferences

WORKERS, HIDDEN, SIZE = 4, 64, 32


@pytest.mark.parametrize("key_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("rank", range(WORKERS))
def test_heads_that_workers_share_are_compared_with_their_own(
    monkeypatch: pytest.MonkeyPatch, key_heads: int, rank: int
) -> None:
    for module in (linear, parameter):
        monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: WORKERS)
        monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    model.qkv_proj = layer = linear.QKVParallelLinear(HIDDEN, SIZE, 8, key_heads, bias=False)
    heads = {"q_proj": 8, "k_proj": key_heads, "v_proj": key_heads}
    published = {name: torch.randn(count * SIZE, HIDDEN) for name, count in heads.items()}
    for name, tensor in published.items():
        layer.weight.weight_loader(layer.weight, tensor, name[0])
    layer.quant_method.process_weights_after_loading(layer)
    found = WeightDifferences(model, rank).compare((f"{name}.weight", tensor) for name, tensor in published.items())
    assert [name for name, _ in found] == [f"{name}.weight" for name in published]
    assert max(difference for _, difference in found) < 1e-5
