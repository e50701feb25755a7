"""What the API server holds, kept in memory: list/watch, cache, repair."""
