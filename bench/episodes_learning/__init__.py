"""Measures the held-out reward of a tool game that a tiny model learns (`make bench NAME=episodes_learning`)."""
