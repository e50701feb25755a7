"""Reads the directory of a Hugging Face causal language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.model_config import FIELD, architectures, checked_model, not_in_vllm


def read_config(path: Path) -> Any:
    """Reads the model's transformers config, with dropout off.

    Raises SpecProblem unless `path` is the directory of a causal language model that engines can run.
    """
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if not path.is_dir():
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            FIELD,
            f"no directory {path} in the trainer pod; check the path, and that the runtime template mounts it there",
        )
    checked_model(path)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, StrictDataclassError) as error:
        raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"config.json of {path} can't be read: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SpecProblem(
            Reason.MODEL_INVALID, FIELD, f"{path} holds a {config.model_type}, which is no causal language model"
        )
    if (engines := architectures()) and (names := config.architectures) and not engines.text.intersection(names):
        # What vLLM asks before it runs transformers' code in place of its own.
        cls = getattr(transformers, names[0])
        if not (cls.is_backend_compatible() or cls._can_set_attn_implementation()):
            raise SpecProblem(Reason.MODEL_INVALID, FIELD, f"the model in {path} {not_in_vllm(names, engines.text)}")
    _disable_dropout(config)
    return config


def _disable_dropout(config: Any) -> None:
    """Sets all probabilities of dropout in `config`, and in the configs inside it, to 0.

    Log-probs must depend on the weights alone: the same in every pass, and the same as the engines'.
    """
    from transformers import PretrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _disable_dropout(value)
        elif isinstance(value, float) and "drop" in name:  # `residual_dropout`, `attn_pdrop`, `layerdrop` and so on
            setattr(config, name, 0.0)
