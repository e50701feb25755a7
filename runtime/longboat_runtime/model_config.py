"""A model's config.json, whatever its architecture calls things, and how long its sequences may be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.imports import without_module

# Of a safetensors file: the bytes that hold the length of its header, and the longest header that the format allows.
_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 100_000_000
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


def import_transformers_without_torch() -> None:
    """Makes transformers do without torch for the life of a process that needs only tokenizers and configurations, like a driver.

    If transformers finds torch, it imports torch and the code of models even for a tokenizer or a configuration: 4.7 s of CPU time and
    690 MB, against 1.3 s and 70 MB (measured). Does nothing if torch has been imported already.
    """
    if "torch" in sys.modules:
        return
    advice = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        with without_module("torch"):
            from transformers import is_torch_available

            is_torch_available()  # it keeps its first answer
    finally:
        if advice is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = advice


def language_model(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the language model's part of `content`, under the names that transformers has for all architectures too.

    GPT-2, for one, has `n_positions` and `n_head` for `max_position_embeddings` and `num_attention_heads`: the attribute map of an
    architecture's config class says so.
    """
    from transformers import CONFIG_MAPPING

    text = dict(content.get("text_config") or content)
    kind = text.get("model_type")
    names = CONFIG_MAPPING[kind].attribute_map if kind in CONFIG_MAPPING else {}
    return {standard: text[own] for standard, own in names.items() if own in text} | text


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of a Hugging Face directory's tensors, by name, from the headers of safetensors files; none if they can't be read.

    Whoever loads the model says what is wrong with it.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for file in weight_files(directory):
            with safe_open(directory / file, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 - no dict
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return {}
    return shapes


def weight_files(directory: Path) -> list[str]:
    """Lists the names of a Hugging Face directory's safetensors files, sorted; they needn't be there.

    Raises OSError, ValueError, KeyError, TypeError or AttributeError if the index of several can't be read.
    """
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def weights_header(file: Path) -> bytes:
    """Reads the header of a safetensors file: JSON of its tensors' names, types, shapes and places, behind 8 bytes with its length.

    Raises OSError; ValueError if the file can't have such a header.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{file} is no safetensors file")
        return opened.read(length)


def longest_sequence(model: Mapping[str, Any], max_length: int | None, directory: str) -> int:
    """Returns the most tokens of prompt plus response: spec.model.maxLength (`max_length`), by default the model's own limit.

    `model` is the config.json of `directory` by standard names (`language_model`), which may name no limit. Raises SpecProblem if
    `max_length` goes beyond the model's limit, or if neither is there.
    """
    limit: int | None = model.get("max_position_embeddings")
    if max_length is None:
        if limit is None:
            raise SpecProblem(
                Reason.MODEL_INVALID,
                "spec.model.maxLength",
                f"config.json in {directory} names no longest sequence (max_position_embeddings, or what its architecture calls it). "
                "Set it.",
            )
        return limit
    if limit is not None and max_length > limit:
        raise SpecProblem(
            Reason.MAX_LENGTH_EXCEEDED,
            "spec.model.maxLength",
            f"{max_length} tokens, but the model in {directory} allows at most {limit}. Lower it, leave it out, or use another model.",
        )
    return max_length
