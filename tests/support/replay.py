"""Replays event logs."""

from __future__ import annotations

import json
from pathlib import Path

from longboat_runtime.eventlog import LogPosition, log_path, surviving
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.rounds.snapshot import from_snapshot


def replay(root: Path, position: LogPosition) -> Ledger:
    """Returns the ledger at `position`: the one in the first line of that log, and the events since."""
    with log_path(root, position.incarnation).open("rb") as file:
        ledger = from_snapshot(json.loads(file.readline())["ledger"])
    for entry in surviving(root, position):
        if entry.incarnation == position.incarnation and not isinstance(entry.body, Measurement):
            ledger.apply(entry)
    return ledger
