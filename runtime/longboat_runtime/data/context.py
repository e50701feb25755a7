"""The model's directory as the data side sees it: context length and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat_crds.model import ModelSpec
from longboat_crds.reasons import Reason
from longboat_runtime.model_config import language_model
from longboat_runtime.problems import SpecProblem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def context_length(model: ModelSpec) -> int:
    """Longest prompt plus response in tokens: spec.model.maxLength, which may not exceed what the model was made for."""
    path = Path(model.path) / "config.json"
    if not path.is_file():
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            "spec.model.path",
            f"{path} is not there. Give a Hugging Face directory that every role pod sees at the same path.",
        )
    own: Any = language_model(json.loads(path.read_text())).get("max_position_embeddings")
    if model.max_length is None and own is None:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.maxLength",
            f"{path} names no longest sequence (max_position_embeddings, or what its architecture calls it). Set "
            "spec.model.maxLength.",
        )
    if model.max_length is not None and own is not None and model.max_length > own:
        raise SpecProblem(
            Reason.MAX_LENGTH_EXCEEDED,
            "spec.model.maxLength",
            f"{model.max_length} is more than the {own} positions the model was made for. Lower it, or leave it out.",
        )
    return int(model.max_length or own)


def load_tokenizer(model: ModelSpec) -> PreTrainedTokenizerBase:
    """The tokenizer of the model's directory; nothing is downloaded and no code of the directory is run."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.path",
            f"{model.path} has no tokenizer that can be loaded ({error}). Put "
            "tokenizer.json and tokenizer_config.json beside config.json.",
        ) from error
