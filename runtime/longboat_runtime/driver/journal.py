"""What a driver remembers: the ledger, the history of lengths beside it, and the event log."""

from __future__ import annotations

from longboat_runtime.driver.eventlog import EventLog
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.view import View


class Journal:
    """Keeps every event that the ledger has folded.

    Lengths are kept where rounds make periods (`audited`): else none would ever be forgotten. `late` counts what was told and
    had no effect; it gets no number and isn't logged.
    """

    def __init__(self, ledger: Ledger, lengths: LengthHistory, log: EventLog, *, audited: bool) -> None:
        self.ledger, self.view, self.lengths, self.log = ledger, View(ledger), lengths, log
        self._audited = audited
        self.late = 0

    def keep(self, event: Event) -> None:
        """Folds the event into the history of lengths and appends it to the log."""
        if self._audited:
            self.lengths.fold(event.body)
        self.log.append(event)
