"""Event logs of jobs that never ran: bodies at given seconds, numbered as a journal does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from longboat_runtime.eventlog import EventLog, LogPosition
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import LogEntry
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan

# Unix time of second 0.
EPOCH = 1_700_000_000.0
GROUP = 2

A, B, C, D = (PromptId(0, row) for row in range(4))
Moment = tuple[float, events.Body | Measurement]
Entry = LogEntry[events.Body | Measurement]


def numbered(moments: Iterable[Moment], incarnation: int = 1, first: int = 1) -> list[Entry]:
    return [LogEntry(seq, incarnation, EPOCH + second, body) for seq, (second, body) in enumerate(moments, first)]


def sample(prompt: PromptId, index: int, attempt: int = 0) -> SampleId:
    return SampleId(*prompt, attempt, index)


def generated(second: float, of: SampleId, engine: str = "e/0", tokens: int = 10) -> Moment:
    spans = (VersionSpan(0, 0, tokens),)
    return second, events.Generated(of, 3, tokens, FinishReason.STOP, spans, engine)


def graded(second: float, *of: SampleId) -> list[Moment]:
    return [(second, events.Graded(one, GradeKind.SCORED, 1.0, 0.1)) for one in of]


def start(second: float = 0.0, step: int = 0) -> list[Moment]:
    """A driver starts and publishes what it has."""
    return [
        (second, events.Started(step)),
        (second, events.PublishStarted(step)),
        (second + 0.5, events.Published(step)),
    ]


def train(second: float, number: int, step: int, *batch: SampleId) -> list[Moment]:
    """A second of training, and half a second of publication."""
    return [
        (second, events.StepStarted(step, number)),
        (second + 1, events.StepCommitted(step, step, number, batch)),
        (second + 1, events.PublishStarted(step)),
        (second + 1.5, events.Published(step)),
    ]


def short_round() -> list[Moment]:
    """Round 1, from second 1 to 5: A is kept with a surplus and an aborted sample, B is deferred half done, C is dropped.

    A's first sample is lost and made again; engines e/2 and e/10 make them.
    """
    a, b, c = ([sample(prompt, index) for index in range(4)] for prompt in (A, B, C))
    return [
        (1, events.Drawn(0, (A, B, C))),
        (1, events.RoundOpened(1, RoundKind.SHORT, 0)),
        *((1, events.Launched(1, prompt, 0, 4)) for prompt in (A, B, C)),
        (1.5, events.Lost(a[0], "engine is gone")),
        (2, events.Relaunched(a[0])),
        generated(2.5, a[1], "e/10"),
        generated(3, a[0], "e/2", tokens=7),
        generated(3, a[2], "e/2"),
        (3, events.Aborted((a[3],))),
        generated(3, b[0], "e/10"),
        generated(3.2, c[0], "e/2"),
        generated(3.2, c[1], "e/2"),
        (3.2, events.Aborted((c[2], c[3]))),
        *graded(3.5, c[0], c[1]),
        (3.5, events.GroupDropped(C, 0, events.DropReason.GRADER_ERROR)),
        *graded(4, a[0], a[1]),
        (4, events.GroupKept(A, 0)),
        (4, events.GroupDeferred(B, 0, events.DeferReason.TOO_LONG)),
        (5, events.RoundClosed(1)),
        *train(5, 1, 1, a[0], a[1]),
    ]


def long_round(second: float = 7, number: int = 2, step: int = 2) -> list[Moment]:
    """B once more, alone; it ends after 4 s."""
    b = [sample(B, index, attempt=1) for index in range(GROUP)]
    return [
        (second, events.RoundOpened(number, RoundKind.LONG, step - 1)),
        (second, events.Launched(number, B, 1, GROUP)),
        generated(second + 1, b[0]),
        generated(second + 3, b[1]),
        *graded(second + 4, *b),
        (second + 4, events.GroupKept(B, 1)),
        (second + 4, events.RoundClosed(number)),
        *train(second + 4, number, step, *b),
    ]


async def write(
    root: Path, incarnation: int, log: Iterable[Entry], resumes: LogPosition | None = None, ledger: Ledger | None = None
) -> LogPosition:
    """Writes an incarnation's log and returns its end."""
    file = EventLog(root, incarnation, to_snapshot(ledger or Ledger(GROUP)), resumes)
    for event in log:
        file.append(event)
    await file.sync()
    file.close()
    return file.position


def accepted(log: Iterable[Entry]) -> Ledger:
    """The ledger after these events, all of which must fit its state: a history that can't be is no test."""
    ledger = Ledger(GROUP)
    for entry in log:
        assert isinstance(entry.body, Measurement) or ledger.apply(entry), entry
    return ledger
