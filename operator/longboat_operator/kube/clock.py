"""The API server's time. Plans compare its times with it, whatever the clock of the operator's own machine says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


def boot_clock() -> float:
    """Returns the seconds since boot, including those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerClock:
    """Follows the `Date` headers of the API server's answers. Threads may share it.

    A header is truncated to whole seconds and takes a while to arrive, so the server's own clock may be ahead of it but is never behind.
    While the server's clock runs evenly, so does this one: durations are exact.
    """

    def __init__(
        self,
        clock: Callable[[], float] = boot_clock,
        machine: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`clock` counts the seconds since a header; `machine` gives the time until the first one comes."""
        self._clock = clock
        self._machine = machine
        self._lock = threading.Lock()
        self._boot: datetime | None = None  # when this machine booted, by the server's clock
        self._latest = datetime.min.replace(tzinfo=UTC)

    def note(self, date: str | None) -> None:
        """Takes the `Date` header of an answer that has just come; a missing or unreadable one is ignored.

        Rule: the newest header counts, unless it is less than a second behind this clock: then only more of it was truncated.
        """
        with suppress(ValueError, OverflowError):
            if date:
                moment = parsedate_to_datetime(date)
                # RFC 5322: "-0000" is UTC too.
                moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
                with self._lock:
                    boot = moment - timedelta(seconds=self._clock())
                    if self._boot is None or not timedelta() <= self._boot - boot < timedelta(seconds=1):
                        self._boot = boot

    def now(self) -> datetime:
        """Returns the header that counts plus the seconds since, as an aware time.

        It never goes backwards: when the server's clock is set back, this one stands still until the server's has caught up.
        """
        with self._lock:
            if self._boot is None:
                return self._machine()
            self._latest = max(self._latest, self._boot + timedelta(seconds=self._clock()))
            return self._latest
