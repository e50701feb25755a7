"""The extension of an engine's workers on CPUs. vLLM imports it in every worker, before the worker chooses its kernels."""

from __future__ import annotations

import longboat_runtime.cpu.norms
import longboat_runtime.cpu.steps  # noqa: F401 - importing them changes vLLM
from longboat_runtime.weights.backend import WeightReceipts


class CpuWorker(WeightReceipts):
    """Reports the weights that it received, as workers on any platform do; the module's imports are what counts."""
