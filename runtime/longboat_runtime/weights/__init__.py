"""Weights from trainer to engines: published once, moved once per node, verified before they serve."""

# vLLM gets `backend` by name, since it can't be imported without vLLM.
BACKEND = "longboat"
WORKER_EXTENSION = "longboat_runtime.weights.backend.WeightReceipts"
# Names of files in /dev/shm by which buckets reach an engine's workers begin so, and go on with the number of the engine's process and "-".
HANDOVER_PREFIX = "longboat-weights-"
