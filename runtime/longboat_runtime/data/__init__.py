"""Dataset rows as prompts: their sources, their order and their tokens."""
