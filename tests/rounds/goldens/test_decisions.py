"""Fed what it was told when the decisions were recorded, the loop decides the same, in the same order."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any, Protocol

import pytest

from longboat_runtime.rounds.events import Body, LogEntry
from tests.rounds.goldens.record import FILE, Recorder, job

Entry = dict[str, Any]


class Loop(Protocol):
    """What decides. `entries` are in the form of the recorded ones."""

    entries: list[Entry]

    def start(self) -> None:
        """Begins anew from the state after the last commit, and is told so."""

    def record(self, body: Body) -> object:
        """Is told what happened."""


def recorded() -> list[Any]:
    with gzip.open(FILE, "rt") as file:
        runs = [json.loads(line) for line in file]
    return [pytest.param(r, id=f"{r['rounds']['policy']}-{r['algorithm'].get('name')}-{r['seed']}") for r in runs]


def replay(run: Entry, loop: Loop) -> None:
    entries = iter(run["entries"])
    for entry in entries:
        if "start" in entry:
            loop.start()
            next(entries)  # it tells itself
        else:
            loop.record(LogEntry.from_json({"seq": 0, "incarnation": 0, "time": 0.0, **entry["told"]}).body)
    for number, (ours, theirs) in enumerate(itertools.zip_longest(loop.entries, run["entries"])):
        assert ours == theirs, f"entry {number}"


@pytest.mark.parametrize("run", recorded())
def test_the_machine_without_rooms_decides_as_recorded(run: Entry) -> None:
    replay(run, Recorder(job(run["rounds"], run["algorithm"])))
