"""Speeds up engines and trainers of small models on CPUs. Nothing here is imported on GPUs.

vLLM gets its worker extensions by name, since all modules but `layers` can't be imported without it.
"""

# The name of `cpu.norms` among vLLM's kernel providers.
NORM_PROVIDER = "longboat"
# vLLM's worker extension, and the one for more workers than CPUs.
WORKER_EXTENSION = "longboat_runtime.cpu.worker.CpuWorker"
CROWDED_WORKER_EXTENSION = "longboat_runtime.cpu.crowded.CrowdedWorker"
