"""The worker extension on CPUs. vLLM imports it in every worker, before the worker chooses its kernels."""

from __future__ import annotations

import longboat_runtime.cpu.norms
import longboat_runtime.cpu.steps  # noqa: F401 - importing them patches vLLM
from longboat_runtime.weights.backend import WeightReceipts


class CpuWorker(WeightReceipts):
    """Reports received weights, as on every platform. What differs here are the imports of this module."""
