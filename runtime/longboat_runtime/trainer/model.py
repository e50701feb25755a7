"""What the directory of a Hugging Face causal language model says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longboat_crds.model import ModelSpec
from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem

FIELD = "spec.model.path"
MAX_LENGTH = "spec.model.maxLength"


def read_config(path: Path) -> Any:
    """The model's transformers config. Raises SpecProblem if `path` is not the directory of a causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if not path.is_dir():
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            FIELD,
            f"no directory {path} in the trainer pod; check the path, and that the runtime template mounts it there",
        )
    if not (path / "config.json").is_file():
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND, FIELD, f"no config.json in {path}; give the directory of a Hugging Face model"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"config.json of {path} can't be read: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SpecProblem(
            Reason.MODEL_INVALID, FIELD, f"{path} holds a {config.model_type}, which is no causal language model"
        )
    # Log-probs must depend on the weights alone: the same in every pass, and the same as the engines'.
    for name in ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def longest_sequence(spec: ModelSpec, config: Any) -> int:
    """Tokens of the longest sequence the job may train: `maxLength`, by default the model's own limit.

    The config's attribute map says what the architecture calls its limit (`n_positions`, `n_ctx`); one without positions has none.
    Raises SpecProblem if the job goes beyond it, or names none where the model has none.
    """
    limit: Any = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is None and spec.max_length is None:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            MAX_LENGTH,
            f"config.json of {spec.path} names no longest sequence (max_position_embeddings, or whatever a {config.model_type} "
            "calls it); set spec.model.maxLength",
        )
    if limit is not None and spec.max_length is not None and spec.max_length > limit:
        raise SpecProblem(
            Reason.MAX_LENGTH_EXCEEDED,
            MAX_LENGTH,
            f"{spec.max_length} tokens, but the model in {spec.path} allows {limit}; lower it or use another model",
        )
    return int(spec.max_length or limit)
