"""Entries of the log that tests make."""

from longboat_runtime.rounds.events import Body, Entry, LogEntry
from longboat_runtime.rounds.measurements import Measurement


def logged(body: Body | Measurement, seq: int = 1, time: float = 0.0) -> Entry:
    """Makes an entry of the first incarnation."""
    return LogEntry(seq, 1, time, body)
