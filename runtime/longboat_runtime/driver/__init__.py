"""The driver: one process a job that runs its rounds."""
