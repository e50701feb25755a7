"""The model, sharded over the trainer's ranks by FSDP2 where that has anything to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from longboat_crds.model import DType, ModelSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.trainer import fused_head
from longboat_runtime.trainer.flops import ModelFlops, peak_flops, weights_in_use
from longboat_runtime.trainer.forward import compile_layers
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.model import read_config
from longboat_runtime.trainer.platform import Platform

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}


def needs_fsdp(ranks: int, dtype: DType) -> bool:
    """Whether FSDP2 has anything to do: weights to shard, or arithmetic in another number format than theirs. Pure.

    A single rank that computes in float32 would only pay for it, with copies of weights and gradients and Python before and after
    each layer: a sixth of the step of a model of 0.6 M parameters. Its results are the same bits without, and so are its files.
    """
    return ranks > 1 or dtype is not DType.FLOAT32


def load_sharded(
    spec: ModelSpec,
    mesh: DeviceMesh,
    *,
    compiled: bool = False,
    frozen: bool = False,
    bin_tokens: int = 0,
    platform: Platform = MACHINE,
) -> nn.Module:
    """Loads the model, sharded by FSDP2 over `mesh` unless that has nothing to do (`needs_fsdp`), `compiled` or not. A collective.

    Over a mesh (replicate, shard) there are copies of the model, each sharded over the second dimension.

    Every rank reads its shards from the files, one weight after another (see `load_weights`). Weights are float32,
    arithmetic is in the spec's number format, and gradients are reduced in float32 as sums over ranks. A `frozen` model has no
    gradients, and its weights are kept in the spec's number format: they would be rounded to it in every pass. If the logits of
    `bin_tokens` tokens are too large to be whole, the model has the mark `fused_head.ROW_BYTES` where its architecture allows it; on
    CPUs never, whose own layers multiply faster and whose memory is the host's.
    Raises SpecProblem, on all ranks, if the model can't be loaded on any.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    path = Path(spec.path)
    with platform.together():
        config = read_config(path)
        row_bytes = config.get_text_config().vocab_size * TORCH_DTYPES[spec.dtype].itemsize
        large = platform.device != "cpu" and fused_head.exceeds(bin_tokens, row_bytes)
        fuses = large and platform.head_can_be_fused(config)
        model = _empty_model(config, platform)
        if fuses:
            setattr(model, fused_head.ROW_BYTES, row_bytes)
        buffers = dict(model.named_buffers())
        # Before FSDP2 changes the names of classes, by which transformers knows how files name and keep their weights.
        conversions = get_model_conversion_mapping(model)
        stored_by = get_model_conversion_mapping(model, add_legacy=False)
        model._weight_conversions = [entry for entry in stored_by if not isinstance(entry, PrefixChange)]
        if platform.device == "cpu":
            from longboat_runtime.cpu import layers as cpu_layers

            if cpu_layers.are_faster(spec.dtype, onednn=torch.backends.mkldnn.is_available()):
                cpu_layers.install(model, norms=not compiled)
        if compiled:
            compile_layers(model, layers(model))
        if frozen:
            for weight in model.requires_grad_(False).parameters():
                weight.data = weight.data.to(TORCH_DTYPES[spec.dtype])
        if needs_fsdp(mesh.size(), spec.dtype):
            shard(model, mesh, compute_policy(spec.dtype))
            model.to_empty(device=mesh.device_type)
        else:
            model.to_empty(device=mesh.device_type)
            model.tie_weights(recompute_mapping=False)
        for name, value in buffers.items():
            model.get_buffer(name).copy_(value)
        platform.load_weights(model, path, conversions)
    return model


def shard(model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Makes each layer a unit of FSDP2: it is gathered, and its gradient scattered, on its own. What is left is one more unit.

    Input and output embeddings are as large as several layers. They are units of their own unless they are tied: one weight
    can't be in two units, and stays in the last one.
    """
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outputs is None or outputs.weight is inputs.weight
    for unit in [*layers(model), *([] if tied else [inputs, outputs])]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if not tied:
        # The gradient of a look-up doesn't depend on the table.
        inputs.set_unshard_in_backward(False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # All ranks reduce the same weights, also those that no token of this rank went through (experts).
    model.set_reduce_scatter_unused_params(True)


def layers(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks of the model, each before those inside it: modules of the classes that transformers doesn't split.

    Raises SpecProblem if there are none.
    """
    names = set(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.path",
            f"the architecture {model.config.model_type} is not supported: it doesn't name its layers",
        )
    return blocks


def compute_policy(dtype: DType) -> MixedPrecisionPolicy:
    """Returns the policy by which weights are kept and gradients reduced in float32; arithmetic is in `dtype`."""
    if dtype is DType.FLOAT32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=TORCH_DTYPES[dtype], reduce_dtype=torch.float32)


@torch.no_grad()
def not_finite(weights: Mapping[str, nn.Parameter], dtype: torch.dtype, platform: Platform = MACHINE) -> list[str]:
    """Returns the names of weights with values that are not finite numbers in `dtype`, the same on all ranks. A collective."""
    bad = torch.zeros(len(weights), device=next(iter(weights.values())).device)
    for index, weight in enumerate(weights.values()):
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        if part.numel():
            # For NaN it is NaN. Rounding keeps the order, so the largest value stands for all.
            bad[index] = ~torch.linalg.vector_norm(part, float("inf")).to(dtype).isfinite()
    dist.all_reduce(bad, dist.ReduceOp.MAX)
    return [name for name, is_bad in zip(weights, platform.read(bad), strict=True) if is_bad]


def parameter_count(model: nn.Module) -> int:
    """Counts the weights, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def model_flops(model: nn.Module, config: Mapping[str, Any], peak: float | None) -> ModelFlops:
    """Returns the `ModelFlops` of the model; `config` is its config.json by standard names (`model_config.language_model`)."""
    names = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = model.get_input_embeddings()
    tied = model.get_output_embeddings() is None or model.get_output_embeddings().weight is embedding.weight
    experts = sum(size for name, size in names.items() if ".experts." in name)
    count = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or 1
    routed = config.get("num_experts_per_tok", count) / count
    heads = config.get("num_attention_heads", 0)
    size = config.get("head_dim") or config.get("hidden_size", 0) // max(heads, 1)
    weights = weights_in_use(sum(names.values()), embedding.weight.numel(), experts, routed, tied=tied)
    return ModelFlops(weights, config.get("num_hidden_layers", 0) * heads * size, peak)


def device_peak(device: torch.device, dtype: DType) -> float | None:
    """Returns the peak operations per second of a GPU in half precision; None for Float32, CPUs, and where it isn't known."""
    if device.type != "cuda" or dtype is DType.FLOAT32:
        return None
    return peak_flops(torch.cuda.get_device_name(device))


def _empty_model(config: Any, platform: Platform) -> nn.Module:
    """Makes the model without memory for its weights. Buffers, such as rotary frequencies, have the values that transformers gives them."""
    from transformers import AutoModelForCausalLM

    attention = platform.choose_attention(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    for weight in model.parameters():
        # Transformers' mark for weights that need no random values.
        weight._is_hf_initialized = True
    for name, buffer in list(model.named_buffers()):
        owner, _, key = name.rpartition(".")
        setattr(model.get_submodule(owner), key, torch.empty_like(buffer, device="cpu"))
    model.initialize_weights()
    return model
