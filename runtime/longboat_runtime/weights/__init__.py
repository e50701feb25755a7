"""Weights from trainer to engines: published once, moved once per node, verified before they serve."""

# vLLM gets `backend` by name, since it can't be imported without vLLM.
BACKEND = "longboat"
WORKER_EXTENSION = "longboat_runtime.weights.backend.WeightReceipts"
