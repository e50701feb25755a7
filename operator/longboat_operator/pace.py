"""Spaces out what may happen repeatedly, but not often. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from longboat_operator.schedule import LONGEST_BACKOFF_SECONDS, backoff_seconds

# Far longer than the longest wait: what happens again after a minute hasn't stopped.
_FORGOTTEN_SECONDS = 10 * LONGEST_BACKOFF_SECONDS


class Pace:
    """Doubles the wait each time, up to a minute; starts over after ten minutes without one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times = 0
        self._last = float("-inf")

    def note(self) -> None:
        """Notes that it happens now."""
        now = self._clock()
        self._times = self._times + 1 if now - self._last < _FORGOTTEN_SECONDS else 1
        self._last = now

    @property
    def wait(self) -> float:
        """The seconds until it may happen again."""
        return max(0.0, self._last + backoff_seconds(self._times) - self._clock()) if self._times else 0.0
