"""What a driver remembers: the ledger, the history of lengths beside it, and the event log."""

from __future__ import annotations

from longboat_runtime.driver.eventlog import EventLog
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.view import View


class Journal:
    """`lengths` are kept where rounds make periods (`audited`): else none would ever be forgotten.

    `late` counts what was told and had no effect; it gets no number and isn't logged.
    """

    def __init__(self, ledger: Ledger, lengths: LengthHistory, log: EventLog, *, audited: bool) -> None:
        self.ledger, self.view, self.lengths, self.log = ledger, View(ledger), lengths, log
        self.audited = audited
        self.late = 0
