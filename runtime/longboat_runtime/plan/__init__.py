"""Plans a job's memory before it starts: traces a rank without memory, and compares its figures with spec and templates."""
