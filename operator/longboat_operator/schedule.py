"""Decides which key is planned next, and when. Pure: times are given by the caller, in seconds of any one clock.

Rules (those of client-go's work queue, in one place): a key is in work at most once; added while in work it comes again
afterwards; added twice it comes once; first in line, first served; one timer per key; all keys together no faster than the
bucket allows. Besides, groups of keys (namespaces) are served in turn, so that a long line in one doesn't hold up the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0


def backoff_seconds(failures: int) -> float:
    """Returns how long to wait after this many failures in a row (from 1): doubles, up to a minute."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 32), LONGEST_BACKOFF_SECONDS)


class Schedule(Generic[K]):
    """The keys that wait, are in work, or have a timer; `group` tells which keys share a line."""

    def __init__(self, group: Callable[[K], Hashable] = lambda _: None) -> None:
        self._group = group
        # A line for each group, in the order in which they are served; none is empty.
        self._lines: dict[Hashable, dict[K, float]] = {}
        self._in_work: dict[K, float] = {}
        self._ended = float("-inf")
        self._added_meanwhile: dict[K, float] = {}
        self._again_by: dict[K, float] = {}
        # A timer's entry in the heap has both its time and its sequence number; other entries are stale.
        self._timers: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0

    def add(self, key: K, now: float) -> None:
        """Asks for work on the key now; if it is in work, for more afterwards."""
        if key in self._in_work:
            self._added_meanwhile.setdefault(key, now)
        else:
            self._line_up(key, now)

    def add_by(self, key: K, when: float) -> None:
        """Asks for work by `when`: sets the timer as `add_at` does, unless the key waits already or has a timer that ends no later.

        If the key is in work, this holds for the work after it, even if its timer is set or cancelled meanwhile.
        """
        if key in self._in_work:
            self._again_by[key] = min(when, self._again_by.get(key, when))
        elif not self._waits(key) and (key not in self._timers or when < self._timers[key][0]):
            self.add_at(key, when)

    def add_at(self, key: K, when: float) -> None:
        """Sets the key's timer: asks for work at `when`, whatever it was set to before.

        Of timers that end at the same time, the one set first comes first; one that is set again counts as set last.
        """
        self._sequence += 1
        self._timers[key] = (when, self._sequence)
        heapq.heappush(self._heap, (when, self._sequence, key))
        if len(self._heap) > 64 + 2 * len(self._timers):
            self._heap = [(when, n, key) for key, (when, n) in self._timers.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Forgets the key's timer."""
        self._timers.pop(key, None)

    def take(self, now: float) -> K | None:
        """Takes the first key of the line that is next; it is in work until `done`. None if no key waits."""
        self._expire(now)
        if not self._lines:
            return None
        group = next(iter(self._lines))
        line = self._lines.pop(group)
        key = next(iter(line))
        del line[key]
        if line:
            self._lines[group] = line
        self._in_work[key] = now
        return key

    def ready(self, now: float) -> bool:
        """Whether `take` would return a key."""
        self._expire(now)
        return bool(self._lines)

    def done(self, key: K, now: float) -> None:
        """Notes that work on the key has ended."""
        del self._in_work[key]
        self._ended = now
        again_by = self._again_by.pop(key, None)
        if (since := self._added_meanwhile.pop(key, None)) is not None:
            self._line_up(key, since)
        elif again_by is not None:
            self.add_by(key, again_by)

    def next_timer(self) -> float | None:
        """Returns when the next timer ends; None if there is none."""
        while self._heap and self._timers.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def depth(self) -> int:
        """Counts the keys that wait, without timers."""
        return sum(map(len, self._lines.values())) + len(self._added_meanwhile)

    def idle(self, until: float) -> bool:
        """Whether no key waits or is in work, and no timer ends by then."""
        timer = self.next_timer()
        return not (self._lines or self._in_work) and (timer is None or timer > until)

    def oldest(self, now: float) -> float:
        """Returns the longest time in seconds that a key has been in line or in work; 0 if none is."""
        return max((now - since for since in (*self._in_work.values(), *self._waiting())), default=0.0)

    def stalled(self, now: float) -> float:
        """Returns the seconds since work on any key last ended, as far as keys have been in line for it; 0 if none is.

        It is at least the time that a key has been in work. However long the line is, it is short while keys come and go.
        """
        since = min(self._in_work.values(), default=now)
        if (oldest := min(self._waiting(), default=None)) is not None:
            since = min(since, max(oldest, self._ended))
        return now - since

    def _line_up(self, key: K, since: float) -> None:
        self._lines.setdefault(self._group(key), {}).setdefault(key, since)

    def _waits(self, key: K) -> bool:
        return key in self._lines.get(self._group(key), {})

    def _waiting(self) -> Iterator[float]:
        for line in (*self._lines.values(), self._added_meanwhile):
            yield from line.values()

    def _expire(self, now: float) -> None:
        while (when := self.next_timer()) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._timers[key]
            self.add(key, when)


class TokenBucket:
    """Lets through at most `burst` at once and `rate` a second in the long run, and nothing while it is closed."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled: float | None = None
        self._closed_until = float("-inf")

    def close_until(self, when: float) -> None:
        """Closes the bucket until then, unless it is closed for longer."""
        self._closed_until = max(when, self._closed_until)

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds until a token is available; 0: now."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate, self._closed_until - now)

    def take(self, now: float) -> None:
        """Spends an available token."""
        self._fill(now)
        self._tokens -= 1.0

    def _fill(self, now: float) -> None:
        if self._filled is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
