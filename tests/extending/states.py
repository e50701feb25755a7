"""The states of a sample, found by trying every event in every state that a small ledger can get into.

One prompt and two responses launched: once to a group of one, where a response may be beyond the group's size, and once to a group
of two, where a sample may wait for the other. Two rounds, so that one may leave the group to the next.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, DropReason, Event
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.records import SampleRecord
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan

PROMPT = PromptId(0, 0)
GROUP_SIZES, SAMPLES, ROUNDS = (1, 2), 2, 2
SPANS = (VersionSpan(0, 0, 1),)

# Where a sample is that has no record: its prompt is not launched yet, waits for its next attempt, or is done with.
QUEUED, DEFERRED, TRAINED, DROPPED, GONE = "queued", "deferred", "trained", "dropped", "[*]"

# State before, event, state after.
Transition = tuple[str, str, str]


def transitions() -> set[Transition]:
    """Every change of a sample's state that the ledger allows."""
    return {found for group_size in GROUP_SIZES for found in _transitions(_ledger(group_size))}


def _transitions(start: Ledger) -> set[Transition]:
    found: set[Transition] = set()
    seen, waiting = {_key(start)}, [pickle.dumps(start)]
    while waiting:
        kept = waiting.pop()
        ledger = pickle.loads(kept)  # noqa: S301 - made here
        before = _places(ledger)
        for body in [*_bodies(ledger)]:
            newer = isinstance(body, events.Started)
            if not ledger.apply(Event(ledger.seq + 1, ledger.incarnation + newer, 0.0, body)):
                continue
            after = _places(ledger) or {index: _end(body, index) for index in before}
            found |= {(before[i], type(body).__name__, after[i]) for i in before if before[i] != after[i]}
            if PROMPT in ledger.groups and (key := _key(ledger)) not in seen:
                seen.add(key)
                waiting.append(pickle.dumps(ledger))
            ledger = pickle.loads(kept)  # noqa: S301 - made here
    return found


def drawn(found: set[Transition]) -> str:
    """For a page, as a diagram of mermaid. What happens to a whole group, whatever the states of its samples, is drawn once."""
    live = _live(found)
    labels: dict[tuple[str, str], set[str]] = defaultdict(set)
    for before, event, after in found:
        every = all((state, event, after) in found for state in live)
        labels["attempt" if every and before in live else before, after].add(event)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {QUEUED} : Drawn", "    state attempt {"]
    lines += [
        f"        {before} --> {after} : {', '.join(sorted(names))}"
        for (before, after), names in sorted(labels.items())
        if {before, after} <= live
    ]
    lines.append("    }")
    lines += [
        f"    {before} --> {after} : {', '.join(sorted(names))}"
        for (before, after), names in sorted(labels.items())
        if not {before, after} <= live
    ]
    return "\n".join([*lines, f"    {TRAINED} --> [*]", f"    {DROPPED} --> [*]", "```"])


def _live(found: set[Transition]) -> set[str]:
    """States of samples that have a record."""
    names = {name for before, _, after in found for name in (before, after)}
    return names - {QUEUED, DEFERRED, TRAINED, DROPPED, GONE}


def _ledger(group_size: int) -> Ledger:
    """A prompt that was drawn, and an open round."""
    ledger = Ledger(group_size)
    for body in (
        events.Started(0),
        events.PublishStarted(0),
        events.Published(0),
        events.Drawn(0, (PROMPT,)),
        events.RoundOpened(1, RoundKind.SHORT, 0),
    ):
        assert ledger.apply(Event(ledger.seq + 1, 1, 0.0, body))
    return ledger


def _bodies(ledger: Ledger) -> Iterator[events.Body]:
    """Whatever could happen next."""
    attempt, step = 0, ledger.step + 1
    ids = [SampleId(*PROMPT, attempt, index) for index in range(SAMPLES)]
    for sample in ids:
        yield events.Generated(sample, 1, 1, FinishReason.STOP, SPANS, "engine")
        yield events.Graded(sample, GradeKind.SCORED, 1.0, 0.0)
        yield events.Graded(sample, GradeKind.GRADER_ERROR, 0.0, 0.0)
        yield events.Lost(sample, "")
        yield events.Relaunched(sample)
        yield events.Aborted((sample,))
        yield events.Stopped(sample, 1, "engine")
        yield events.Paused(sample, 1, SPANS, "engine")
        yield events.Resumed((sample,))
    yield events.Started(ledger.step)
    yield events.GroupKept(PROMPT, attempt)
    yield events.GroupCarried(PROMPT, attempt)
    yield events.GroupDeferred(PROMPT, attempt, DeferReason.TOO_LONG)
    yield events.GroupDropped(PROMPT, attempt, DropReason.GRADER_ERROR)
    if ledger.last_round < ROUNDS:
        yield events.RoundOpened(ledger.last_round + 1, RoundKind.SHORT, ledger.serving)
    for number, round_ in ledger.rounds.items():
        yield events.Launched(number, PROMPT, attempt, SAMPLES)
        yield events.GroupAdopted(number, PROMPT, attempt)
        if PROMPT not in round_.groups:
            continue
        yield events.RoundClosed(number)
        yield events.ChunkStarted(step, number, round_.chunks + 1, (PROMPT,))
        yield events.ChunkDone(step, round_.chunks)
        yield events.ChunksLost(step)
        yield events.StepStarted(step, number)
        yield events.StepFailed(step, number, "")
        if group := ledger.groups.get(PROMPT):
            batch = tuple(sorted(group.counted_ids))
            yield events.StepCommitted(step, step, number, batch)
            yield events.StepCommitted(step, step, number, batch, skipped=1, dropped=DropReason.NOT_FINITE)


def _places(ledger: Ledger) -> dict[int, str]:
    """The states of the samples, by index; none once the prompt is done with."""
    if group := ledger.groups.get(PROMPT):
        return {record.index: str(record.state) for record in group.samples}
    if PROMPT in ledger.queue:
        return dict.fromkeys(range(SAMPLES), DEFERRED if PROMPT in ledger.deferred_prompts else QUEUED)
    return {}


def _end(body: events.Body, index: int) -> str:
    """What became of a sample whose prompt is done with by this event."""
    if isinstance(body, events.GroupDropped):
        return DROPPED
    assert isinstance(body, events.StepCommitted)
    if all(sample.index != index for sample in body.samples):
        return GONE
    return TRAINED if body.dropped is None else DROPPED


def _key(ledger: Ledger) -> object:
    """What decides which events fit. Samples are exchangeable."""
    group = ledger.groups.get(PROMPT)
    if group is None:
        return None
    rounds = [
        (r.state, PROMPT in r.groups, PROMPT in r.kept, r.missing, PROMPT in r.streamed, r.streaming)
        for r in ledger.rounds.values()
    ]
    return (
        tuple(sorted(map(_record_key, group.samples), key=repr)),
        (
            group.state,
            group.round,
            group.completed is None,
            group.graded,
            group.errors,
            PROMPT in ledger.carried,
            *rounds,
        ),
    )


def _record_key(record: SampleRecord) -> tuple[object, ...]:
    return record.state, record.counts, record.finish_reason, record.kind
