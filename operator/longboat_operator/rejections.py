"""Requests that the API server rejected: kept for the next plan, and not repeated before their time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from longboat_operator.model import Target
from longboat_operator.pace import Pace
from longboat_operator.schedule import backoff_seconds

# Ends of messages that say who owns an object whose name the job needs.
OF_SOMETHING_ELSE = "exists and is not this job's: delete it, or create the job under another name (metadata.name)"
OF_AN_EARLIER_JOB = "belongs to a deleted job of this name; it is created again once that one is gone"
WITHOUT_ITS_LABEL = "is the job's, and lacks its label"


@dataclass(frozen=True, slots=True)
class Rejection:
    """The server's words, how often it said no in a row, and when to ask again (the caller's clock)."""

    message: str
    times: int
    again_at: float


class Rejections:
    """The rejections of one job, or of its capacity."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Each new Secret has a name of its own, so that no rejection of the one before holds it up.
        self._secrets = Pace(clock)
        self._secret_put_off = False
        self._by_target: dict[Target, Rejection] = {}
        # The targets that a plan was told to put off, until it asks for how long.
        self._put_off: set[Target] = set()

    def note(self, target: Target, message: str) -> None:
        """Notes that the server said no; each time the wait doubles, up to a minute."""
        previous = self._by_target.get(target)
        times = previous.times + 1 if previous else 1
        self._by_target[target] = Rejection(message, times, self._clock() + backoff_seconds(times))

    def clear(self, target: Target) -> None:
        """Notes that the server said yes."""
        self._by_target.pop(target, None)

    def keep_only(self, targets: Collection[Target]) -> None:
        """Forgets what the plan no longer asks for."""
        self._by_target = {target: rejection for target, rejection in self._by_target.items() if target in targets}

    def waits(self, target: Target) -> bool:
        """Whether it is too early to ask again."""
        rejection = self._by_target.get(target)
        early = rejection is not None and self._clock() < rejection.again_at
        if early:
            self._put_off.add(target)
        return early

    def secret_waits(self) -> bool:
        """Whether it is too early to create another Secret. If not, one is created now."""
        self._secret_put_off = self._secrets.wait > 0
        if not self._secret_put_off:
            self._secrets.note()
        return self._secret_put_off

    def next_seconds(self) -> float | None:
        """Returns the seconds until the next may be tried again; None if none waits.

        One that `waits` put off since the last call, and that is due by now, may be tried at once. Any other that is due is left out: it is
        behind one that waits (apply stops creating there), or the plan ended early.
        """
        now, put_off, secret_put_off = self._clock(), self._put_off, self._secret_put_off
        self._put_off, self._secret_put_off = set(), False
        waiting = [
            rejection.again_at - now
            for target, rejection in self._by_target.items()
            if rejection.again_at > now or target in put_off
        ]
        waiting += [self._secrets.wait] if secret_put_off else []
        return min((max(seconds, 0.0) for seconds in waiting), default=None)

    def by_name(self) -> dict[str, str]:
        """Returns the messages by object name, for `Observed`; those of kinds that share a name are joined."""
        messages: dict[str, str] = {}
        for (kind, name), rejection in sorted(self._by_target.items()):
            text = f"{kind} {name}: {rejection.message}"
            messages[name] = f"{messages[name]}; {text}" if name in messages else text
        return messages
