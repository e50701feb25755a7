"""Compares peak memory of a trainer's step on one GPU with `longboat plan`, and measures its speed, for layers of large models."""
