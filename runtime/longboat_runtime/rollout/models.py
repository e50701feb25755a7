"""The model classes that vLLM knows."""

from __future__ import annotations

from collections.abc import Sequence


def load_here(architectures: Sequence[str]) -> None:
    """Imports the model's classes in this process, which is about to load one of them anyway.

    Unless told so, vLLM looks at the class in a process of its own first, so that an accelerator is not touched before a fork. That
    process imports all of vLLM once more: on two cores it was half of an engine's start.
    """
    from vllm import ModelRegistry

    for architecture in architectures:
        known = ModelRegistry.models.get(architecture)
        if known is not None:
            ModelRegistry.register_model(architecture, known.load_model_cls())
