"""The worker extension on CPUs. vLLM imports it in every worker, before the worker chooses its kernels."""

from __future__ import annotations

import torch

import longboat_runtime.cpu.norms
import longboat_runtime.cpu.steps  # noqa: F401 - importing them patches vLLM
from longboat_runtime.weights.backend import WeightReceipts

# vLLM computes attention in bfloat16 by AMX where the CPU has it. Linux ends a process that does so without having asked (SIGILL).
torch.cpu._init_amx()


class CpuWorker(WeightReceipts):
    """Reports received weights, as on every platform. What differs here are the imports of this module."""
