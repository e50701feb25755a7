"""Whole weights under their Hugging Face names, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from longboat_runtime.weights.layout import TensorKind


@dataclass(frozen=True, slots=True)
class Unit:
    """Weights of the model that become tensors of its files together: mostly one becomes one, but a layer's experts become several.

    `names` are the model's; `kinds` describe the tensors of the files, with floats in the number format that is published.
    """

    names: tuple[str, ...]
    kinds: tuple[TensorKind, ...]
    converted: bool


@torch.no_grad()
def full_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights and persistent buffers, floats as `dtype`, as a checkpoint of the model names them; tied ones once.

    A collective: every rank must run through the whole iterator, and sees the same tensors in the same order. One weight is gathered
    at a time, or as many as are needed for one in the form of the files (a layer's experts are several there, and one in the model).
    Shards are rounded before they are gathered, so neither the whole weight nor what is sent has more bytes than the result.
    """
    from transformers.core_model_loading import revert_weight_conversion

    weights = published_weights(model)
    for stored, names, converted in _stored_as(model, weights):
        gathered = {name: _gather(weights[name], dtype) for name in names}
        if converted:
            yield from revert_weight_conversion(model, gathered).items()
        else:
            yield stored, gathered[names[0]]


def published_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns the model's weights and persistent buffers by their names, tied ones once; of sharded ones, the shards."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def units(model: nn.Module, dtype: torch.dtype) -> list[Unit]:
    """Returns what `full_weights` yields, in its order, by what is gathered together. Moves nothing, and is the same on all ranks."""
    from transformers.core_model_loading import revert_weight_conversion

    weights = published_weights(model)
    listed = []
    for stored, names, converted in _stored_as(model, weights):
        empty = {
            name: torch.empty(weights[name].shape, dtype=_rounded(weights[name], dtype), device="meta")
            for name in names
        }
        tensors = revert_weight_conversion(model, empty) if converted else {stored: empty[names[0]]}
        kinds = (
            TensorKind(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
            for name, tensor in tensors.items()
        )
        listed.append(Unit(tuple(names), tuple(kinds), converted))
    return listed


@torch.no_grad()
def gather_unit(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    unit: Unit,
    dtype: torch.dtype,
    receiver: int,
    places: Sequence[Tensor] | None,
) -> None:
    """Gathers a unit of `published_weights` at rank `receiver` alone, into its `places`, one for each of `unit.kinds`.

    A collective of the ranks that have shards for the receiver; others do nothing. If places are on another device than the weights,
    tensors are gathered beside the weights first.
    """
    from transformers.core_model_loading import revert_weight_conversion

    if not unit.converted:
        place = None if places is None else places[0]
        _gather_at(weights[unit.names[0]], dtype, receiver, place)
        return
    gathered = {name: _gather_at(weights[name], dtype, receiver, None) for name in unit.names}
    if places is not None:
        whole = {name: value for name, value in gathered.items() if value is not None}
        for place, tensor in zip(places, revert_weight_conversion(model, whole).values(), strict=True):
            place.copy_(tensor)


def _gather_at(value: Tensor, dtype: torch.dtype, receiver: int, place: Tensor | None) -> Tensor | None:
    """Returns the whole value at the receiver, which is `place` if that is given; None at other ranks.

    Shards are rounded first and arrive where they belong, so the receiver gets the others' shards and allocates no memory for each.
    """
    rank, part, dimension = dist.get_rank(), value, None
    if isinstance(value, DTensor):
        part = value.to_local()
        dimension = next((number for number, shards in enumerate(value.placements) if shards.is_shard(0)), None)
    if dimension is None:
        if rank != receiver:
            return None
        return part.to(_rounded(part, dtype)) if place is None else place.copy_(part)
    group = value.device_mesh.get_group(dimension)
    ranks = dist.get_process_group_ranks(group)
    if receiver not in ranks:
        return None
    part = part.to(_rounded(part, dtype)).contiguous()
    if rank != receiver:
        if part.numel():
            _exchange([dist.P2POp(dist.isend, part, receiver, group)])
        return None
    if place is not None and place.device == part.device:
        whole = place
    else:
        whole = torch.empty(value.shape, dtype=part.dtype, device=part.device)
    rows = -(-value.shape[0] // len(ranks))
    receives = []
    for number, peer in enumerate(ranks):
        target = whole[number * rows : (number + 1) * rows]
        if peer == rank:
            target.copy_(part)
        elif target.numel():
            receives.append(dist.P2POp(dist.irecv, target, peer, group))
    _exchange(receives)
    return whole if place is None or whole is place else place.copy_(whole)


def _exchange(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def _stored_as(model: nn.Module, names: Iterable[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yields the name of each weight of the files, the names of the model's weights that make it, and whether these are converted.

    Others are only renamed. Converted ones may become several weights of the files.
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
    rounded = value.to(_rounded(value, dtype))
    return rounded.full_tensor() if isinstance(rounded, DTensor) else rounded


def _rounded(value: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Returns the number format that a value is published in."""
    return dtype if value.is_floating_point() else value.dtype
