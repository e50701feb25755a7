from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import DropReason, Event, LogEntry
from longboat_runtime.rounds.ledger import Ledger, skipped_in_a_row
from longboat_runtime.rounds.policy import PolicyError
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import next_round
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, SegmentSize, VersionSpan
from tests.rounds.world import World

PROMPT = PromptId(0, 3)


def fold(*parts: events.Body, group_size: int = 2) -> Ledger:
    ledger = Ledger(group_size)
    for body in (events.Started(0), events.PublishStarted(0), events.Published(0), *parts):
        assert add(ledger, body), body
    return ledger


def add(ledger: Ledger, body: events.Body) -> bool:
    return ledger.apply(Event(ledger.seq + 1, max(ledger.incarnation, 1), 0.0, body))


def generated(index: int, attempt: int = 0) -> events.Generated:
    span = (VersionSpan(0, 0, 4),)
    return events.Generated(SampleId(*PROMPT, attempt, index), 2, 4, FinishReason.STOP, span, "engine-0")


def graded(index: int, kind: GradeKind = GradeKind.SCORED) -> events.Graded:
    return events.Graded(SampleId(*PROMPT, 0, index), kind, 1.0, 0.1)


LAUNCHED = (
    events.Drawn(0, (PROMPT,)),
    events.RoundOpened(1, RoundKind.SHORT, 0),
    events.Launched(1, PROMPT, 0, 3),
)


def test_the_first_samples_by_number_count_and_the_rest_are_surplus() -> None:
    ledger = fold(*LAUNCHED, generated(2), generated(0), generated(1))
    group = ledger.groups[PROMPT]
    assert group.counted == [2, 0]
    assert [s.state for s in group.samples] == [SampleState.GENERATED, SampleState.SURPLUS, SampleState.GENERATED]
    assert not add(ledger, graded(1)), "a surplus sample is not graded"


def test_a_sample_keeps_its_seat_while_it_is_generated_again() -> None:
    ledger = fold(*LAUNCHED, generated(2), events.Lost(SampleId(*PROMPT, 0, 2), "node is gone"))
    add(ledger, events.Relaunched(SampleId(*PROMPT, 0, 2)))
    for index in (0, 1, 2):
        assert add(ledger, generated(index))
    assert ledger.groups[PROMPT].counted == [2, 0]
    assert ledger.groups[PROMPT].samples[1].state is SampleState.SURPLUS


def test_what_is_drawn_again_after_a_loss_is_counted() -> None:
    """The first sample had nothing in the store when it was lost, the second 3 of its 4 tokens, the third never was."""
    first, second = (SampleId(*PROMPT, 0, index) for index in range(2))
    ledger = fold(
        *LAUNCHED,
        events.Lost(first, "its engine died"),
        events.Relaunched(first),
        events.Moved(second, 3, (VersionSpan(0, 0, 3),), "engine-0", "engine-1"),
        events.Lost(second, "its engine died", begun=(VersionSpan(0, 0, 3),)),
        events.Relaunched(second),
        generated(0),
        generated(1),
    )
    assert ledger.rounds[1].redrawn_tokens == 4 + 1
    assert add(ledger, generated(2))
    assert (ledger.rounds[1].redrawn_tokens, ledger.rounds[1].generated_tokens) == (5, 12)
    assert from_snapshot(json.loads(json.dumps(to_snapshot(ledger)))).rounds[1].redrawn_tokens == 5


def test_a_group_with_a_grader_error_cannot_be_kept() -> None:
    ledger = fold(*LAUNCHED, generated(0), generated(1), graded(0), graded(1, GradeKind.GRADER_ERROR))
    assert not add(ledger, events.GroupKept(PROMPT, 0))
    assert add(ledger, events.GroupDropped(PROMPT, 0, DropReason.GRADER_ERROR))


def test_an_incomplete_group_cannot_be_kept() -> None:
    ledger = fold(*LAUNCHED, generated(0), graded(0))
    assert not add(ledger, events.GroupKept(PROMPT, 0))


def test_only_samples_beyond_a_complete_group_can_be_aborted() -> None:
    ledger = fold(*LAUNCHED, generated(0))
    assert not add(ledger, events.Aborted((SampleId(*PROMPT, 0, 2),)))
    add(ledger, generated(1))
    assert not add(ledger, events.Aborted((SampleId(*PROMPT, 0, 1),))), "it counts"
    assert add(ledger, events.Aborted((SampleId(*PROMPT, 0, 2),)))
    assert not add(ledger, generated(2)), "a late callback of an aborted sample"


def test_a_prompt_is_drawn_once() -> None:
    ledger = fold(*LAUNCHED)
    assert not add(ledger, events.Drawn(1, (PROMPT,)))
    assert not add(ledger, events.Drawn(0, (PromptId(0, 4),))), "not the next position"
    assert not add(ledger, events.Drawn(1, (PromptId(0, 4), PromptId(0, 4))))


def test_a_commit_names_exactly_the_kept_samples() -> None:
    ledger = fold(*LAUNCHED, generated(0), generated(1), graded(0), graded(1), events.GroupKept(PROMPT, 0))
    add(ledger, events.RoundClosed(1))
    batch = (SampleId(*PROMPT, 0, 0), SampleId(*PROMPT, 0, 1))
    assert not add(ledger, events.StepCommitted(1, 1, 1, batch)), "not started"
    add(ledger, events.StepStarted(1, 1))
    assert not add(ledger, events.StepCommitted(1, 1, 1, batch[:1]))
    assert not add(ledger, events.StepCommitted(2, 2, 1, batch))
    assert add(ledger, events.StepCommitted(1, 1, 1, batch))
    assert not ledger.groups
    assert not ledger.rounds


KEPT = (
    *LAUNCHED,
    *(generated(0), generated(1), graded(0), graded(1)),
    events.GroupKept(PROMPT, 0),
    events.RoundClosed(1),
    events.StepStarted(1, 1),
)
BATCH = (SampleId(*PROMPT, 0, 0), SampleId(*PROMPT, 0, 1))


def test_a_step_that_trained_nothing_drops_its_prompts_and_counts() -> None:
    ledger = fold(*KEPT, events.StepCommitted(1, 1, 1, BATCH, 2, DropReason.NOT_FINITE))
    assert (ledger.step, ledger.trained, ledger.dropped) == (1, 0, {DropReason.NOT_FINITE: 1})
    assert not ledger.groups
    assert not ledger.rounds
    assert add(ledger, events.PublishStarted(1)), "under the number of the step, like any weights"


def test_prompts_of_a_step_with_some_minibatches_skipped_are_trained() -> None:
    ledger = fold(*KEPT, events.StepCommitted(1, 1, 1, BATCH, 1))
    assert (ledger.trained, ledger.dropped, ledger.skipped_steps) == (1, {}, 0)


@given(st.lists(st.sampled_from(["trained", "skipped", "empty"])))
def test_skipped_steps_are_counted_in_a_row(steps: list[str]) -> None:
    """A step without a batch says nothing about gradients."""
    count = 0
    for number, what in enumerate(steps, 1):
        dropped = DropReason.NOT_FINITE if what == "skipped" else None
        body = events.StepCommitted(number, number, number, () if what == "empty" else BATCH, dropped=dropped)
        count = skipped_in_a_row(count, body)
    told = [what for what in steps if what != "empty"]
    assert count == len(told) - max((i for i, what in enumerate(told, 1) if what == "trained"), default=0)


def test_skipped_steps_are_in_a_snapshot_and_another_job_starts_without() -> None:
    ledger = fold(*KEPT, events.StepCommitted(1, 1, 1, BATCH, 1, DropReason.NOT_FINITE))
    again = from_snapshot(json.loads(json.dumps(to_snapshot(ledger))))
    assert again.skipped_steps == 1
    again.start_over()
    assert again.skipped_steps == 0


def test_a_prompt_of_paused_responses_is_deferred_with_their_lengths() -> None:
    """By them the next job launches the longest first."""
    paused = [
        events.Paused(SampleId(*PROMPT, 0, index), tokens, (VersionSpan(0, 0, tokens),), "engine-0")
        for index, tokens in ((0, 7), (1, 30))
    ]
    ledger = fold(*LAUNCHED, events.GroupCarried(PROMPT, 0), *paused)
    ledger.start_over()
    given_up = ledger.deferred_prompts[PROMPT]
    assert (given_up.lengths, given_up.longest) == ([7, 30, None], 30)


def test_a_log_names_what_was_skipped_only_where_something_was() -> None:
    plain = Event(1, 1, 0.0, events.StepCommitted(1, 1, 1, BATCH))
    skipped = Event(1, 1, 0.0, events.StepCommitted(1, 1, 1, BATCH, 2, DropReason.NOT_FINITE))
    assert not {"skipped", "dropped"} & plain.to_json().keys()
    assert (skipped.to_json()["skipped"], skipped.to_json()["dropped"]) == (2, "not_finite")
    assert [LogEntry.from_json(one.to_json()) for one in (plain, skipped)] == [plain, skipped]


def test_a_log_and_a_checkpoint_name_segments_only_where_a_sample_has_turns() -> None:
    """So single turns are written as they always were, and what was written before there were segments is read."""
    plain = generated(0)
    turns = replace(generated(1), segments=(SegmentSize(9, 3), SegmentSize(4, 1)))
    assert "segments" not in Event(1, 1, 0.0, plain).to_json()
    assert Event(1, 1, 0.0, turns).to_json()["segments"] == [[9, 3], [4, 1]]
    for body in (plain, turns):
        event = Event(1, 1, 0.0, body)
        assert LogEntry.from_json(json.loads(json.dumps(event.to_json()))) == event
    written = json.loads(json.dumps(to_snapshot(fold(*LAUNCHED, plain, turns))))
    again = from_snapshot(written).groups[PROMPT]
    assert [sample.size.segments for sample in again.samples[:2]] == [(SegmentSize(6, 4),), turns.segments]
    assert again.tokens == 6 + 9 + 4, "what training on it computes"
    [group] = written["groups"]
    assert ["segments" in sample for sample in group["samples"]] == [False, True, False]


def test_a_start_loses_what_ran_and_voids_the_step_that_was_computed() -> None:
    ledger = fold(*LAUNCHED, generated(0))
    assert ledger.apply(Event(ledger.seq + 1, 2, 0.0, events.Started(0)))
    assert ledger.serving is None
    assert list(ledger.lost) == [SampleId(*PROMPT, 0, 1), SampleId(*PROMPT, 0, 2)]
    assert ledger.groups[PROMPT].samples[0].state is SampleState.GENERATED


def test_an_event_that_is_no_longer_written_changes_nothing() -> None:
    line = {"type": "OvercommitChosen", "factor": 1.5, "predicted": {"1": 2.5}, "reason": "because"}
    event = LogEntry.from_json({"seq": 9, "incarnation": 1, "time": 0.5, **line})
    assert event == Event(9, 1, 0.5, events.Retired("OvercommitChosen"))
    assert LogEntry.from_json(event.to_json()) == event
    ledger = fold(*LAUNCHED)
    before = to_snapshot(ledger)
    assert add(ledger, event.body)
    assert to_snapshot(ledger) == {**before, "seq": before["seq"] + 1}


def test_a_round_that_was_measured_without_step_times_is_read() -> None:
    measured = measurements.RoundMeasured(1, RoundKind.SHORT, 1, 2, 0, 0, 100, 8, 0, 0.5)
    line = Event(9, 1, 0.5, measured).to_json()
    del line["step_times"]
    assert LogEntry.from_json({**line, "step_seconds": 0.01}).body == measured


def test_mistakes_of_policies_are_errors() -> None:
    class Mistaken:
        def decide(self, view: View, event: Event) -> list[events.Body]:
            return [events.GroupDropped(PROMPT, 0, DropReason.GRADER_ERROR)]

    with pytest.raises(PolicyError, match="no weights serve"):
        next_round(View(Ledger(2)))
    with pytest.raises(PolicyError, match=r"GroupDropped\(prompt=.* contradicts the state of the ledger"):
        World(Mistaken(), 2).start()


@pytest.mark.parametrize(
    "broken", [{"seq": 1, "incarnation": 1, "time": 0.0, "type": "Nonsense"}, {"seq": 1, "type": "Started", "step": 0}]
)
def test_a_line_that_is_no_event_is_refused(broken: dict) -> None:
    with pytest.raises(ValueError, match="not an event"):
        LogEntry.from_json(broken)
