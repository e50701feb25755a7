"""The model classes that vLLM knows."""

from __future__ import annotations

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.model_config import read_model_config


def load_here(config: EngineConfig) -> None:
    """Imports the class of `config`'s model in this process, which is about to load it anyway.

    Unless told so, vLLM looks at the class in a process of its own first, so that an accelerator is not touched before a fork. That
    process imports all of vLLM once more: on two cores it was half of an engine's start.
    """
    from vllm import ModelRegistry

    for architecture in read_model_config(config).get("architectures") or []:
        known = ModelRegistry.models.get(architecture)
        if known is not None:
            ModelRegistry.register_model(architecture, known.load_model_cls())
