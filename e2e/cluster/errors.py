"""Errors of the test cluster."""


class ClusterError(Exception):
    """Something a person can act on; the message says what happened and what to do."""


class CommandError(ClusterError):
    """A command ended with a status other than zero."""

    def __init__(self, argv: list[str], status: int, stderr: str) -> None:
        """Keeps the status and the error output; the message holds the command and the end of that output."""
        super().__init__(f"`{' '.join(argv)}` ended with status {status}: {stderr.strip()[-2000:]}")
        self.status = status
        self.stderr = stderr
