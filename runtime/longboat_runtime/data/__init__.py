"""Rows of a dataset as prompts: where they come from, in which order, and as which tokens."""
