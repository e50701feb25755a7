"""What an engine's step takes inside a job, and what the same engine takes with nothing beside it."""
