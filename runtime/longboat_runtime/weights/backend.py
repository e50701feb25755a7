"""Our backend for vLLM's weight transfer: a worker loads buckets from host memory and reports what it received.

None of vLLM's own backends works without an accelerator. This one works on every platform: vLLM's loader copies the tensors
to the worker's device. Importing this module registers it; vLLM imports it in every worker to mix `WeightReceipts` in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS
from vllm.platforms import current_platform

from longboat_runtime.weights import BACKEND, groups
from longboat_runtime.weights.bucket import Bucket, TensorEntry, tensors_in
from longboat_runtime.weights.checksum import ByteArray, checksum_of
from longboat_runtime.weights.differences import WeightDifferences

log = logging.getLogger(__name__)


@dataclass
class BucketInit(WeightTransferInitInfo):
    """Sets nothing up."""


@dataclass
class BucketUpdate(WeightTransferUpdateInfo):
    """One bucket: its entries and its bytes, as `data` if the worker is in this process, in a file, or as the worker `received` them."""

    entries: list[Any]
    data: ByteArray | None = None
    path: str | None = None
    received: torch.Tensor | None = None

    def bucket(self) -> Bucket:
        """Returns the bucket in the host's memory."""
        entries = tuple(
            TensorEntry(name, dtype, tuple(shape), offset, size) for name, dtype, shape, offset, size in self.entries
        )
        if self.received is not None:
            return Bucket(entries, self.received.cpu().numpy())
        if self.data is not None:
            return Bucket(entries, self.data)
        if self.path is None:
            raise ValueError("a bucket needs data or the path of a file")
        return Bucket(entries, np.memmap(self.path, dtype=np.uint8, mode="r"))


class BucketTransfer(WeightTransferEngine[BucketInit, BucketUpdate]):
    """Loads buckets inside vLLM's layerwise reload.

    A plain second `load_weights` fails on CPU, where linear weights are repacked after the first one.
    """

    init_info_cls = BucketInit
    update_info_cls = BucketUpdate
    differences: WeightDifferences

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._expected = _published_names(model)
        self._loaded: set[str] = set()
        self._partial: list[str] = []
        self._kernels: list[tuple[UnquantizedFusedMoEMethod, Any]] = []
        self._digests: list[bytes] = []
        self.groups = groups.WorkerGroups(device)

    def init_transfer_engine(self, init_info: BucketInit) -> None:
        del init_info

    def start_weight_update(self) -> None:
        self.abandon()
        self._loaded, self._partial = set(), []
        self._digests = []
        initialize_layerwise_reload(self.model)
        for experts in _packed_experts(self.model):
            self._kernels.append((experts.quant_method, experts.quant_method.moe_kernel))
            experts.quant_method.moe_kernel = None

    def receive_weights(self, update_info: BucketUpdate) -> None:
        bucket = update_info.bucket()
        self._digests += bucket.digests()
        flat = torch.from_numpy(bucket.data) if update_info.received is None else update_info.received
        self._loaded |= self.model.load_weights(tensors_in(bucket.entries, flat))
        _detach(self.model, flat)

    def finish_weight_update(self) -> None:
        self._partial = _partly_loaded(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        for module in _tied_modules(self.model):
            module.quant_method.process_weights_after_loading(module)
        self._restore_kernels()

    def shutdown(self) -> None:
        """Releases nothing: there is nothing to release."""

    def abandon(self) -> None:
        """Ends an unfinished update: layers that haven't received all of their weights keep the ones they had.

        Otherwise they would be left without memory, and the next update would count what this one brought.
        """
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load() and info.kernel_tensors is not None:
                _place_kernel_tensors(layer, info)
                info.reset()
        self._restore_kernels()

    def _restore_kernels(self) -> None:
        """Gives back their kernels to experts for which vLLM hasn't set up new ones."""
        for method, kernel in self._kernels:
            if method.moe_kernel is None:
                method.moe_kernel = kernel
        self._kernels.clear()

    def receipt(self) -> dict[str, Any]:
        """Returns the last update's receipt: the checksum of what came, and the weights and buffers that got nothing or only a part."""
        return {
            "checksum": checksum_of(self._digests),
            "missing": sorted(self._expected - self._loaded) + self._partial,
        }


def _published_names(model: torch.nn.Module) -> set[str]:
    """Returns the names of all that a publication has to bring: parameters and persistent buffers.

    The scales that attention layers set by themselves after each load aren't among them, nor tables of experts, which are never loaded.
    """
    names = {name for name, _ in model.named_parameters()}
    for place, module in model.named_modules():
        if not is_deferred_attention_layer(module):
            computed = module._non_persistent_buffers_set | SKIP_LOAD_TENSORS
            names |= {
                f"{place}.{name}" if place else name
                for name, buffer in module.named_buffers(recurse=False)
                if name not in computed
            }
    return names


def _tied_modules(model: torch.nn.Module) -> list[Any]:
    """Returns the modules that share a weight with an earlier one, such as an output layer tied to the embedding.

    The layerwise reload loads nothing into them, so what they derived from their weight (on CPU a repacked copy) stays the old one.
    """
    owned: set[int] = set()
    tied = []
    for module in model.modules():
        parameters = {id(parameter) for parameter in module.parameters(recurse=False)}
        if parameters & owned and hasattr(module, "quant_method"):
            tied.append(module)
        owned |= parameters
    return tied


def _packed_experts(model: torch.nn.Module) -> Iterator[Any]:
    """Yields, on CPU only, the fused experts whose weights vLLM packs once, when it sets their kernel up.

    At a reload it finds the kernel there and leaves the weights as they came, which the kernel then mistakes for packed ones. So
    on CPU it has to set the kernel up again with every update. Elsewhere captured graphs hold the kernel's addresses, and
    nothing is packed beside it.
    """
    if current_platform.is_cpu():
        for module in model.modules():
            if isinstance(getattr(module, "quant_method", None), UnquantizedFusedMoEMethod):
                yield module


def _partly_loaded(model: torch.nn.Module) -> list[str]:
    """Lists weights of several tensors that received only some of them, with what came or is missing; for use before the update ends.

    To vLLM a parameter is loaded as soon as the first tensor goes into it.
    """
    return [f"{name}.weight ({lacking})" for name, module in model.named_modules() if (lacking := _lacking(module))]


def _lacking(module: torch.nn.Module) -> str:
    info = get_layerwise_info(module)
    if not info.can_load() or not info.loaded_weights:
        return ""
    if isinstance(getattr(module, "quant_method", None), UnquantizedFusedMoEMethod):
        return f"{info.load_numel} of {info.load_numel_total} values"
    if not isinstance(module, LinearBase):
        return ""
    got = {arguments.arguments.get("loaded_shard_id") for name, arguments in info.loaded_weights if name == "weight"}
    parts: list[Any] = []
    if isinstance(module, QKVParallelLinear):
        parts = ["q", "k", "v"]
    elif isinstance(module, MergedColumnParallelLinear):
        parts = list(range(len(module.output_sizes)))
    lacking = [str(part) for part in parts if got and part not in got]
    # Some models have the parts as one tensor, or several of them as one.
    whole = None in got or any(isinstance(part, tuple) for part in got)
    return "" if whole or not lacking else f"without part {', '.join(lacking)}"


def _detach(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """Copies the tensors in `flat` that layers keep until they have received all of their weights: the next bucket overwrites `flat`."""
    inside = range(flat.data_ptr(), flat.data_ptr() + flat.nbytes)
    for layer in model.modules():
        for _, arguments in get_layerwise_info(layer).loaded_weights:
            for name, value in arguments.arguments.items():
                if isinstance(value, torch.Tensor) and not value.is_meta and value.data_ptr() in inside:
                    arguments.arguments[name] = value.clone()


class WeightReceipts:
    """Adds our methods to vLLM's worker class, which it is mixed into (`worker_extension_cls`)."""

    weight_transfer_engine: BucketTransfer
    rank: int
    _weight_update_active: bool
    update_weights: Callable[[dict[str, Any]], None]

    def weight_differences(self, update: dict[str, Any], first: bool) -> list[tuple[str, float]]:
        """Compares the weights of one bucket, the `first` or a later one: see `WeightDifferences.compare`. Empty if that fails."""
        transfer = self.weight_transfer_engine
        try:
            if first:
                transfer.differences = WeightDifferences(transfer.model, self.rank)
            named: list[tuple[str, float]] = transfer.differences.compare(BucketUpdate(**update).bucket().tensors())
            return named
        except Exception as error:  # noqa: BLE001 - it only explains another failure
            log.warning("weights can't be compared with the publication: %s", error)
            return []

    def abandon_weight_update(self) -> None:
        """See `BucketTransfer.abandon`."""
        self.weight_transfer_engine.abandon()
        self._weight_update_active = False  # the worker's own flag: while it is set, no other update can begin

    def weight_versions(self) -> dict[str, str]:
        """See `groups.versions`."""
        return groups.versions()

    def join_weight_groups(
        self, key: str, addresses: dict[int, str], first: int, size: int, seconds: float
    ) -> str | None:
        """Joins the groups of all senders, in which this engine's workers have ranks from `first` on. Returns the error, if any.

        See `WorkerGroups.join`.
        """
        try:
            self.weight_transfer_engine.groups.join(key, addresses, first + self.rank, size, seconds)
        except Exception as error:  # noqa: BLE001 - raised, it would end the worker
            return f"{type(error).__name__}: {error}"
        return None

    def leave_weight_groups(self, key: str) -> None:
        """See `WorkerGroups.leave`."""
        self.weight_transfer_engine.groups.leave(key)

    def receive_weights(self, entries: list[Any], nbytes: int, sender: int) -> str | None:
        """Receives a bucket that is broadcast, and loads it. Returns the error if it isn't received, else None."""
        try:
            received = self.weight_transfer_engine.groups.receive(sender, nbytes)
        except Exception as error:  # noqa: BLE001 - see above
            return f"{type(error).__name__}: {error}"
        self.update_weights({"entries": entries, "received": received})
        return None

    def weight_receipt(self) -> dict[str, Any]:
        return self.weight_transfer_engine.receipt()


WeightTransferEngineFactory.register_engine(BACKEND, BucketTransfer)
