"""Keeps what the API server holds in memory: list/watch, cache, repair."""
