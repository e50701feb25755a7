from __future__ import annotations

import os
from pathlib import Path

import pytest

from longboat_runtime.eventlog import EventLog, end_of, log_path, surviving
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.samples import PromptId
from tests.support.replay import replay

EMPTY = to_snapshot(Ledger(2))


def drawn(seq: int, incarnation: int = 1) -> Event:
    return Event(seq, incarnation, 12.5, events.Drawn(seq - 2, (PromptId(0, seq),)))


def started(incarnation: int = 1, seq: int = 1) -> Event:
    return Event(seq, incarnation, 12.5, events.Started(0))


async def write(log: EventLog, *written: Event) -> None:
    for event in written:
        log.append(event)
    await log.sync()


async def test_what_was_synced_is_read_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 1, EMPTY)
    await write(log, started(), drawn(2))
    log.append(drawn(3))
    assert list(surviving(tmp_path, end_of(tmp_path, 1))) == [started(), drawn(2)]
    assert log.position.offset > end_of(tmp_path, 1).offset


async def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    await write(EventLog(tmp_path, 1, EMPTY), started(), drawn(2))
    path = log_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-5])
    assert list(surviving(tmp_path, end_of(tmp_path, 1))) == [started()]


async def test_events_after_the_resumed_position_are_dead(tmp_path: Path) -> None:
    first = EventLog(tmp_path, 1, EMPTY)
    await write(first, started(), drawn(2))
    position = first.position
    await write(first, drawn(3), drawn(4))
    ledger = replay(tmp_path, position)
    await write(EventLog(tmp_path, 2, to_snapshot(ledger), position), started(2, seq=3), drawn(4, incarnation=2))
    assert [e.seq for e in surviving(tmp_path, end_of(tmp_path, 2))] == [1, 2, 3, 4]
    assert [e.incarnation for e in surviving(tmp_path, end_of(tmp_path, 2))] == [1, 1, 2, 2]
    assert replay(tmp_path, end_of(tmp_path, 2)).incarnation == 2


async def test_a_job_may_start_a_thousand_times(tmp_path: Path) -> None:
    position, ledger, starts = None, Ledger(2), 1100
    for number in range(1, starts + 1):
        log = EventLog(tmp_path, number, to_snapshot(ledger), position)
        event = started(number, seq=number)
        await write(log, event)
        ledger.apply(event)
        position = log.position
        log.close()
    assert [e.incarnation for e in surviving(tmp_path, end_of(tmp_path, starts))] == [*range(1, starts + 1)]


async def test_a_failed_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path, 1, EMPTY)
    await write(log, started())
    durable = log_path(tmp_path, 1).read_bytes()

    def half_then_full(file: int, data: bytes, offset: int) -> int:
        if offset > len(durable):
            raise OSError(28, "No space left on device")
        return os.write(file, data[:7]) if os.lseek(file, offset, os.SEEK_SET) else 0

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half_then_full)
        log.append(drawn(2))
        with pytest.raises(OSError, match="No space left"):
            await log.sync()
    assert log_path(tmp_path, 1).read_bytes() == durable
    await write(log, drawn(3))
    assert list(surviving(tmp_path, end_of(tmp_path, 1))) == [started(), drawn(2), drawn(3)]


def test_two_drivers_never_share_a_number(tmp_path: Path) -> None:
    EventLog(tmp_path, 1, EMPTY)
    with pytest.raises(FileExistsError):
        EventLog(tmp_path, 1, EMPTY)
