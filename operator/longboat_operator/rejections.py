"""Requests that the API server rejected: kept for the next plan, and not repeated before their time. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from longboat_operator.model import Target
from longboat_operator.pace import Pace

# Ends of messages that say who owns an object whose name the job needs.
OF_SOMETHING_ELSE = "exists and is not this job's: delete it, or create the job under another name (metadata.name)"
OF_AN_EARLIER_JOB = "belongs to a deleted job of this name; it is created again once that one is gone"
WITHOUT_ITS_LABEL = "is the job's, and lacks its label"

# Each new Secret has a name of its own, so that no rejection of the one before holds it up: all of them share a pace.
_ANY_SECRET: Target = ("Secret", "")


class Rejections:
    """The rejections of one job, or of its capacity."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._messages: dict[Target, str] = {}
        self._paces: defaultdict[Target, Pace] = defaultdict(lambda: Pace(clock))
        # The targets that a plan was told to put off, until it asks for how long.
        self._put_off: set[Target] = set()

    def note(self, target: Target, message: str) -> None:
        """Notes that the server said no; each time the wait doubles, up to a minute."""
        self._messages[target] = message
        self._paces[target].note()

    def clear(self, target: Target) -> None:
        """Notes that the server said yes."""
        self._messages.pop(target, None)
        self._paces.pop(target, None)

    def keep_only(self, targets: Collection[Target]) -> None:
        """Forgets what the plan no longer asks for."""
        for target in self._messages.keys() - targets:
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
        return min(
            (wait for target, wait in waits.items() if target in put_off or (wait > 0 and target in self._messages)),
            default=None,
        )

    def by_name(self) -> dict[str, str]:
        """Returns the messages by object name, for `Observed`; those of kinds that share a name are joined."""
        messages: dict[str, str] = {}
        for (kind, name), message in sorted(self._messages.items()):
            text = f"{kind} {name}: {message}"
            messages[name] = f"{messages[name]}; {text}" if name in messages else text
        return messages
