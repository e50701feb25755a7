"""Serves the model to one launch of a sample as an OpenAI-compatible endpoint, and records the tokens of its turns."""
