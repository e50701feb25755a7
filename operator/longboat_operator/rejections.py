"""Requests that the API server rejected: kept for the next plan, and not repeated before their time. No I/O.

Also those without a final answer (5xx, 429, 401, or none at all), once that has lasted: a webhook that is down may stay down.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection

from longboat_operator.model import Target
from longboat_operator.pace import Pace

# Ends of messages that say who owns an object whose name the job needs.
OF_SOMETHING_ELSE = "exists and is not this job's: delete it, or create the job under another name (metadata.name)"
OF_AN_EARLIER_JOB = "belongs to a deleted job of this name; it is created again once that one is gone"
WITHOUT_ITS_LABEL = "is the job's, and lacks its label"

# How long a request has to fail before that is reported, in seconds: most failures that pass by themselves pass sooner.
LASTING_SECONDS = 15.0
# Begins the message of a request that got no final answer.
UNANSWERED = f"the request has failed for {LASTING_SECONDS:g} s and is repeated"

# Each new Secret has a name of its own, so that no rejection of the one before holds it up: all of them share a pace.
_ANY_SECRET: Target = ("Secret", "")

_NUMBER = re.compile(r"[0-9]+")


class Rejections:
    """The rejections of one job, or of its capacity."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: dict[Target, str] = {}
        # Since when each request has had no final answer, and the message.
        self._unanswered: dict[Target, tuple[float, str]] = {}
        self._paces: defaultdict[Target, Pace] = defaultdict(lambda: Pace(clock))
        # The targets that a plan was told to put off, until it asks for how long.
        self._put_off: set[Target] = set()

    def note(self, target: Target, message: str) -> None:
        """Notes that the server said no; each time the wait doubles, up to a minute."""
        self._unanswered.pop(target, None)
        self._messages[target] = message
        self._paces[target].note()

    def note_unanswered(self, target: Target, message: str) -> bool:
        """Notes that a request got no final answer; returns whether that has lasted for `LASTING_SECONDS`.

        Rules: once it has, the request waits like a rejected one. A message that differs from the last only in numbers, such as ports and
        times, doesn't replace it.
        """
        since, before = self._unanswered.get(target, (self._clock(), message))
        alike = _NUMBER.sub("0", before) == _NUMBER.sub("0", message)
        self._unanswered[target] = since, before if alike else message
        if target not in self._lasting():
            return False
        self._paces[target].note()
        return True

    def clear(self, target: Target) -> None:
        """Notes that the server said yes."""
        self._unanswered.pop(target, None)
        self._messages.pop(target, None)
        self._paces.pop(target, None)

    def keep_only(self, targets: Collection[Target]) -> None:
        """Forgets what the plan no longer asks for."""
        for target in {*self._messages, *self._unanswered}.difference(targets):
            self.clear(target)

    def waits(self, target: Target) -> bool:
        """Whether it is too early to ask again."""
        early = target in self._paces and self._paces[target].wait > 0
        if early:
            self._put_off.add(target)
        return early

    def secret_waits(self) -> bool:
        """Whether it is too early to create another Secret. If not, one is created now."""
        early = self.waits(_ANY_SECRET)
        if not early:
            self._paces[_ANY_SECRET].note()
        return early

    def next_seconds(self) -> float | None:
        """Returns the seconds until the next may be tried again; None if none waits.

        One that `waits` put off since the last call, and that is due by now, may be tried at once. Any other that is due is left out: it is
        behind one that waits (apply stops creating there), or the plan ended early.
        """
        put_off, self._put_off = self._put_off, set()
        waits = {target: pace.wait for target, pace in self._paces.items()}
        failed = self._messages.keys() | self._unanswered.keys()
        return min(
            (wait for target, wait in waits.items() if target in put_off or (wait > 0 and target in failed)),
            default=None,
        )

    def by_name(self) -> dict[str, str]:
        """Returns the messages by object name, for `Observed`; those of kinds that share a name are joined.

        A request without a final answer has one only once that has lasted.
        """
        messages: dict[str, str] = {}
        for (kind, name), message in sorted({**self._messages, **self._lasting()}.items()):
            text = f"{kind} {name}: {message}"
            messages[name] = f"{messages[name]}; {text}" if name in messages else text
        return messages

    def _lasting(self) -> dict[Target, str]:
        """Returns the messages about requests that have failed for long enough."""
        now = self._clock()
        return {
            target: f"{UNANSWERED}: {message}"
            for target, (since, message) in self._unanswered.items()
            if now - since >= LASTING_SECONDS
        }
