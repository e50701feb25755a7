"""A Hugging Face causal language model, read from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from longboat_crds.model import ModelSpec
from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.self_check import check_packing

FIELD = "spec.model.path"


def read_config(path: Path) -> Any:
    """The model's transformers config. Raises SpecProblem if `path` is no directory of a causal language model."""
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
    # Log-probs must be those of the weights: the same in every pass, and those of the engines.
    for name in ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def read_model(path: Path, config: Any) -> nn.Module:
    """The whole model in float32 on the CPU.

    Raises SpecProblem if weights are missing or of other shapes than the config says, or if the architecture can't be packed.
    """
    from transformers import AutoModelForCausalLM

    attention.register()
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            attn_implementation=attention.NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"the model in {path} can't be loaded: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        raise SpecProblem(
            Reason.MODEL_INVALID,
            FIELD,
            f"weights are missing in {path}: {', '.join(missing[:5])} ({len(missing)} in all)",
        )
    check_packing(model)
    return model


def longest_sequence(spec: ModelSpec, config: Any) -> int:
    """Tokens of the longest sequence the job may train. Raises SpecProblem if it is beyond the model's own limit."""
    limit = int(config.get_text_config().max_position_embeddings)
    if spec.max_length is not None and spec.max_length > limit:
        raise SpecProblem(
            Reason.MAX_LENGTH_EXCEEDED,
            "spec.model.maxLength",
            f"{spec.max_length} tokens, but the model in {spec.path} goes to {limit}; lower it or take another model",
        )
    return spec.max_length or limit
