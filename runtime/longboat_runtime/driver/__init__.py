"""The driver: one process per job, which runs its rounds."""
