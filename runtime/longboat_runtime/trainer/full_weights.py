"""Whole weights under their Hugging Face names, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def full_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Weights and persistent buffers as a checkpoint of the model names them, in a fixed order; tied ones once.

    A collective: every rank must run through the whole iterator, and sees the same tensors. One tensor is gathered at a time,
    unless the architecture keeps its weights in another form than its files (fused experts): then all of them are.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    gathered = _gather(model, dtype)
    if get_model_conversion_mapping(model, add_legacy=False):
        yield from revert_weight_conversion(model, dict(gathered)).items()
    else:
        yield from gathered


@torch.no_grad()
def _gather(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    for name, value in model.state_dict().items():
        if name in tied:
            continue
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        yield name, whole.to(dtype) if whole.is_floating_point() else whole
