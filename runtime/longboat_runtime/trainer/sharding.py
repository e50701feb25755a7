"""The model, sharded over the trainer's ranks by FSDP2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from longboat_crds.model import DType, ModelSpec
from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.trainer.model import read_config, read_model
from longboat_runtime.trainer.self_check import choose_attention

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}


def load_sharded(spec: ModelSpec, mesh: DeviceMesh) -> nn.Module:
    """The model with every layer, and what is left as one, sharded by FSDP2 over `mesh`. A collective.

    Rank 0 reads the directory and broadcasts; the others never hold more than one weight besides their shards. Weights are
    float32, arithmetic is in the spec's number format, and gradients are reduced in float32 as sums over ranks.
    """
    config = read_config(Path(spec.path))
    source = read_model(Path(spec.path), config) if mesh.get_rank() == 0 else None
    model = _empty_model(config)
    policy = compute_policy(spec.dtype)
    for layer in layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=mesh.device_type)
    _receive(model, source, mesh)
    return model


def layers(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of the model, outermost first, by the class names that transformers gives as indivisible."""
    names = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.path",
            f"the architecture {model.config.model_type} is not supported: it doesn't name its layers",
        )
    return found


def compute_policy(dtype: DType) -> MixedPrecisionPolicy:
    """Weights are kept and gradients reduced in float32; arithmetic is in `dtype`."""
    if dtype is DType.FLOAT32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=TORCH_DTYPES[dtype], reduce_dtype=torch.float32)


def parameter_count(model: nn.Module) -> int:
    """Number of weights, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _empty_model(config: Any) -> nn.Module:
    """The model without memory for its weights."""
    from transformers import AutoModelForCausalLM

    attention = choose_attention(config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)


@torch.no_grad()
def _receive(model: nn.Module, source: nn.Module | None, mesh: DeviceMesh) -> None:
    """Fills shards and buffers from rank 0's `source`."""
    device = torch.device(mesh.device_type)
    values = dict(source.state_dict()) | dict(source.named_buffers()) if source is not None else {}
    for name, target in [*model.named_parameters(), *model.named_buffers()]:
        whole = values[name].to(device) if values else torch.empty(target.shape, dtype=target.dtype, device=device)
        dist.broadcast(whole, src=0)
        if isinstance(target, DTensor):
            shard = distribute_tensor(whole, mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(shard.to_local())
        else:
            target.copy_(whole)
