"""What an engine's step takes inside a job, and what it takes in the same engines with nothing beside them."""
