"""What engines have in common, imported before they are forked: most of an engine's start is the import of vLLM."""

from __future__ import annotations

import gc

from longboat_runtime.rollout.factory import _import_without_compiler, _load_model_classes

_import_without_compiler()
_load_model_classes(["Qwen3ForCausalLM"])

import longboat_runtime.rollout.counters  # noqa: E402
import longboat_runtime.rollout.inprocess  # noqa: E402
import longboat_runtime.rollout.scheduler  # noqa: E402, F401

gc.collect()
gc.freeze()
