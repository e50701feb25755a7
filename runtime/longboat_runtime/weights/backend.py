"""Our backend of vLLM's weight transfer: a worker loads buckets from host memory and says what it received.

None of vLLM's own backends works without an accelerator. This one works on every platform: vLLM's loader copies the tensors
to the worker's device. Importing this module registers it; vLLM imports it in every worker to mix `WeightReceipts` in.
"""

from __future__ import annotations

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
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from longboat_runtime.weights.bucket import Bucket, TensorEntry
from longboat_runtime.weights.checksum import ByteArray, WeightChecksum

BACKEND = "longboat"
WORKER_EXTENSION = "longboat_runtime.weights.backend.WeightReceipts"


@dataclass
class BucketInit(WeightTransferInitInfo):
    """Nothing has to be set up."""


@dataclass
class BucketUpdate(WeightTransferUpdateInfo):
    """One bucket: its entries, and its bytes either at hand (worker in this process) or in a file (worker elsewhere)."""

    entries: list[Any]
    data: ByteArray | None = None
    path: str | None = None

    def bucket(self) -> Bucket:
        entries = tuple(
            TensorEntry(name, dtype, tuple(shape), offset, size) for name, dtype, shape, offset, size in self.entries
        )
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

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._expected = {name for name, _ in model.named_parameters()}
        self._loaded: set[str] = set()
        self._checksum = WeightChecksum()

    def init_transfer_engine(self, init_info: BucketInit) -> None:
        del init_info

    def start_weight_update(self) -> None:
        self._loaded = set()
        self._checksum = WeightChecksum()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BucketUpdate) -> None:
        bucket = update_info.bucket()
        bucket.feed(self._checksum)
        self._loaded |= self.model.load_weights(bucket.tensors())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for module in _tied_modules(self.model):
            module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is held."""

    def receipt(self) -> dict[str, Any]:
        """Of the last update: checksum of what was received, and parameters of the model that got nothing."""
        return {"checksum": self._checksum.hexdigest(), "missing": sorted(self._expected - self._loaded)}


def _tied_modules(model: torch.nn.Module) -> list[Any]:
    """Modules that hold no weight of their own, such as an output layer tied to the embedding.

    The layerwise reload passes them over, so what they made of their weight (on CPU a repacked copy) stays the old one.
    """
    seen: set[int] = set()
    tied = []
    for module in model.modules():
        parameters = {id(parameter) for parameter in module.parameters(recurse=False)}
        if parameters & seen and hasattr(module, "quant_method"):
            tied.append(module)
        seen |= parameters
    return tied


class WeightReceipts:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    weight_transfer_engine: BucketTransfer

    def weight_receipt(self) -> dict[str, Any]:
        return self.weight_transfer_engine.receipt()


WeightTransferEngineFactory.register_engine(BACKEND, BucketTransfer)
