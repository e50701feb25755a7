"""Whole weights under their Hugging Face names, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def full_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights and persistent buffers, floats as `dtype`, as a checkpoint of the model names them; tied ones once.

    A collective: every rank must run through the whole iterator, and sees the same tensors in the same order. One weight is gathered
    at a time, or as many as are needed for one in the form of the files (a layer's experts are several there, and one in the model).
    Shards are rounded before they are gathered, so neither the whole weight nor what is sent has more bytes than the result.
    """
    from transformers.core_model_loading import revert_weight_conversion

    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    weights = {name: value for name, value in model.state_dict().items() if name not in tied}
    for stored, names, converted in _stored_as(model, weights):
        gathered = {name: _gather(weights[name], dtype) for name in names}
        if converted:
            yield from revert_weight_conversion(model, gathered).items()
        else:
            yield stored, gathered[names[0]]


def _stored_as(model: nn.Module, names: Iterable[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yields the name of each weight of the files, those of the model's that make it, and whether these are converted or just renamed.

    Converted ones may become several weights of the files.
    """
    from transformers.core_model_loading import WeightConverter, rename_source_key

    reverse = [entry.reverse_transform() for entry in reversed(model._weight_conversions)]
    converters = [entry for entry in reverse if isinstance(entry, WeightConverter)]
    renamings = [entry for entry in reverse if not isinstance(entry, WeightConverter)]
    groups: dict[str, list[str]] = {}
    converted: set[str] = set()
    for name in names:
        stored, pattern = rename_source_key(name, renamings, converters, reverse=True)
        groups.setdefault(stored, []).append(name)
        if pattern is not None:
            converted.add(stored)
    for stored, members in groups.items():
        yield stored, members, stored in converted


def _gather(value: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = value.to(dtype) if value.is_floating_point() else value
    return rounded.full_tensor() if isinstance(rounded, DTensor) else rounded
