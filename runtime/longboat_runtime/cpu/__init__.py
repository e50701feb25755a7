"""What engines and trainers of small models compute differently on CPUs. Nothing here is imported for GPUs.

The names are those that vLLM is given: the modules behind them can't be imported without it.
"""

# `norms`, among vLLM's providers of kernels.
NORM_PROVIDER = "longboat"
# The extension of an engine's workers, and of workers that can't all run at once.
WORKER_EXTENSION = "longboat_runtime.cpu.worker.CpuWorker"
CROWDED_WORKER_EXTENSION = "longboat_runtime.cpu.crowded.CrowdedWorker"
