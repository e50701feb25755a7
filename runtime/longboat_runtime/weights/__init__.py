"""Weights from trainer to engines: published once, moved once per node, verified before they serve."""
