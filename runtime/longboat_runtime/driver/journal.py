"""Numbers events, folds them into ledger and length history and appends them to the log."""

from __future__ import annotations

from collections.abc import Callable

from longboat_runtime.driver.eventlog import EventLog
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.events import Body, Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.view import View


class Journal:
    """The only writer of a ledger, and of the history of lengths beside it.

    Lengths are kept where rounds make periods (`audited`): else none would ever be forgotten. `clock` gives
    Unix time in seconds. `late` counts events that had no effect.
    """

    def __init__(
        self, ledger: Ledger, lengths: LengthHistory, log: EventLog, clock: Callable[[], float], *, audited: bool
    ) -> None:
        self.ledger, self.view, self.lengths, self.log = ledger, View(ledger), lengths, log
        self._clock, self._audited = clock, audited
        self.late = 0

    def record(self, body: Body) -> Event | None:
        """The event, if it had an effect; one without effect (late, doubled) gets no number and isn't logged."""
        event = Event(self.ledger.seq + 1, self.log.incarnation, self._clock(), body)
        if not self.ledger.apply(event):
            self.late += 1
            return None
        if self._audited:
            self.lengths.fold(body)
        self.log.append(event)
        return event
