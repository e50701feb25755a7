"""Trackers: the job's records, spec and samples in Weights & Biases and MLflow, logged by a process of their own for each."""
