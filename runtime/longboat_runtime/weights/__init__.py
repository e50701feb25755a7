"""Weights from trainer to engines: published once, moved once per node, verified before they serve."""

# Names that vLLM is given: `backend` can't be imported without it.
BACKEND = "longboat"
WORKER_EXTENSION = "longboat_runtime.weights.backend.WeightReceipts"
