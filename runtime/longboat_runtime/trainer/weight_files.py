"""A model's weights, read from its safetensors files: each rank reads the part it keeps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.model_config import FIELD, INDEX, SINGLE_FILE, weight_files

# Number formats of weights that can be trained; others belong to quantized models.
FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(slots=True)
class _Source:
    """Says where a weight comes from: tensors of the files, and how transformers converts them, if it does.

    `tensors` are safetensors' slices, not yet read, by the pattern of the converter that their names match, or `target` without one.
    """

    target: str
    converter: Any
    tensors: dict[str, list[Any]] = field(default_factory=dict)


@torch.no_grad()
def load_weights(model: nn.Module, path: Path, conversions: Sequence[Any]) -> None:
    """Fills the weights of `model`, and the buffers that the files have, from the safetensors files in `path`, like `from_pretrained`.

    `conversions` are transformers' rules for how the files of this architecture name and store weights.
    Only this rank's part of a sharded weight is read. One that the files hold in another form (the experts of a layer, which
    the model keeps as one weight) is put together from this rank's experts, and where the form allows no part to be read
    alone, from the whole, one weight at a time. One of several tied weights is enough. Raises SpecProblem if files can't be
    read, or weights are missing, of another shape than the config says, or in a format that can't be trained.
    """
    if getattr(model.config, "quantization_config", None):
        raise _problem(f"the model in {path} is quantized; give the unquantized one, in bfloat16")
    filled: set[str] = set()
    with ExitStack() as opened:
        targets = model.state_dict()
        sources = _sources(model, targets, _open(path, opened), conversions)
        for source in sources:
            for name, part in _read(model, source, targets):
                local = _local(targets[name])
                local.copy_(part.to(local.device))
                filled.add(name)
    _refuse_missing(model, path, targets, filled)


def _open(path: Path, opened: ExitStack) -> dict[str, Any]:
    """Opens all tensors of the files as slices, by their names in the files. Raises SpecProblem."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    for name in _file_names(path):
        try:
            file = opened.enter_context(safe_open(path / name, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise _problem(f"{name} of {path} can't be read: {error}; copy the model again") from error
        tensors |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    return tensors


def _file_names(path: Path) -> list[str]:
    if (path / SINGLE_FILE).is_file() or (path / INDEX).is_file():
        try:
            return weight_files(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _problem(f"{INDEX} of {path} can't be read: {error}; copy the model again") from error
    others = sorted(file.name for file in path.glob("*.bin"))
    cure = f"convert {others[0]} by transformers: from_pretrained, then save_pretrained" if others else "add them"
    raise _problem(f"neither {SINGLE_FILE} nor {INDEX} in {path}; {cure}")


def _sources(
    model: nn.Module, targets: Mapping[str, Tensor], tensors: Mapping[str, Any], conversions: Sequence[Any]
) -> list[_Source]:
    """Finds what each weight comes from, by the rules of `conversions`. Tensors that the model doesn't have are left out.

    The tensors of each are in the order of the names in the files, numbers as numbers: converters take the experts of a layer
    in that order.
    """
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    renamings = [entry for entry in conversions if not isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    sources: dict[str, _Source] = {}
    for name in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, targets)
        if target not in targets and name in targets:
            target, pattern = name, None
        if target not in targets:
            continue
        converter = deepcopy(by_pattern[pattern]) if pattern is not None else None
        source = sources.setdefault(target, _Source(target, converter))
        source.tensors.setdefault(pattern or target, []).append(tensors[name])
    # If a tied weight is there under both names, the one that engines take counts.
    return [source for target, source in sources.items() if tied.get(target) not in sources]


def _read(model: nn.Module, source: _Source, targets: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and this rank's part of each weight that `source` gives. Raises SpecProblem for another shape or format."""
    target = targets[source.target]
    for tensor in (tensor for of_pattern in source.tensors.values() for tensor in of_pattern):
        if target.is_floating_point() and tensor.get_dtype() not in FLOATS:
            raise _problem(
                f"{source.target} is quantized ({tensor.get_dtype()}); give the unquantized model, in bfloat16"
            )
    if source.converter is None:
        [[tensor, *_]] = source.tensors.values()
        _check_shape(source.target, tuple(tensor.get_shape()), target.shape)
        yield source.target, tensor[_part(target)]
    elif (experts := _own_experts(source, target)) is not None:
        if experts.start < experts.stop:
            part = _convert(model, source, experts)[source.target]
            _check_shape(source.target, part.shape, _local(target).shape)
            yield source.target, part
        else:
            yield source.target, _local(target)
    else:
        for name, whole in _convert(model, source, slice(None)).items():
            _check_shape(name, whole.shape, targets[name].shape)
            yield name, whole[_part(targets[name])]


def _own_experts(source: _Source, target: Tensor) -> slice | None:
    """Returns which tensors of each pattern make this rank's part of `target`; None if its part can't be made of some of them.

    It can if one tensor for each place is stacked along the first dimension, the other operations leave that alone, and no other
    dimension is sharded.
    """
    from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

    first, *rest = source.converter.operations
    own, *others = _part(target)
    stacked = isinstance(first, MergeModulelist) and first.dim == 0
    along = all(
        (isinstance(operation, Concatenate) and operation.dim > 0)
        or (isinstance(operation, Transpose) and min(operation.dim0, operation.dim1) > 0)
        for operation in rest
    )
    whole = all(part == slice(0, size) for part, size in zip(others, target.shape[1:], strict=True))
    counts = {len(tensors) for tensors in source.tensors.values()}
    return own if stacked and along and whole and counts == {target.shape[0]} else None


def _convert(model: nn.Module, source: _Source, chosen: slice) -> dict[str, Tensor]:
    """Converts the `chosen` tensors of each pattern into weights, by name."""
    for pattern, tensors in source.tensors.items():
        for tensor in tensors[chosen]:
            source.converter.add_tensor(source.target, source.target, pattern, tensor[:])
    try:
        made = source.converter.convert(source.target, model=model, config=model.config)
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _problem(
            f"{source.target} can't be made of what the files hold: {error}; copy the model again"
        ) from error
    return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _local(target: Tensor) -> Tensor:
    """Returns the tensor that holds this rank's part of a weight."""
    return target.to_local() if isinstance(target, DTensor) else target


def _part(target: Tensor) -> tuple[slice, ...]:
    """Returns which part of the whole weight this rank keeps."""
    if not isinstance(target, DTensor):
        return tuple(slice(0, size) for size in target.shape)
    shape, offsets = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, shape, strict=True))


def _check_shape(name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(actual) != tuple(expected):
        raise _problem(
            f"{name} has the shape {tuple(actual)} in the files, by config.json it should be {tuple(expected)}"
        )


def _refuse_missing(model: nn.Module, path: Path, expected: Collection[str], filled: Collection[str]) -> None:
    """Raises SpecProblem if weights are missing.

    One of several tied weights is enough; buffers may be missing if the architecture says so.
    """
    sources = getattr(model, "all_tied_weights_keys", None) or {}
    present = {sources.get(name, name) for name in filled}
    optional = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    buffers = dict(model.named_buffers())
    missing = sorted(
        name
        for name in expected
        if sources.get(name, name) not in present
        and not (name in buffers and any(pattern.search(name) for pattern in optional))
    )
    if missing:
        raise _problem(f"weights are missing in {path}: {', '.join(missing[:5])} ({len(missing)} in all)")


def _problem(message: str) -> SpecProblem:
    return SpecProblem(Reason.MODEL_INVALID, FIELD, message)
