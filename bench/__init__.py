"""Benchmarks with recorded raw results: `make bench NAME=step`."""
