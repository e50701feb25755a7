"""What a round asked of its engines follows from its events."""

from __future__ import annotations

from collections.abc import Sequence

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.rounds.measurements import Responses, RoundWork
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.work import QUANTILES, RoundWorks
from longboat_runtime.samples import FinishReason, PromptId, SampleId

FIRST, SECOND = PromptId(0, 1), PromptId(0, 2)


def folded(bodies: Sequence[tuple[float, events.Body]]) -> RoundWorks:
    works = RoundWorks()
    for seq, (time, body) in enumerate(bodies, 1):
        works.fold(events.Event(seq, 1, time, body))
    return works


def opened(number: int = 1) -> events.RoundOpened:
    return events.RoundOpened(number, RoundKind.SHORT, 0)


def launched(prompt: PromptId, samples: int = 2, number: int = 1) -> events.Launched:
    return events.Launched(number, prompt, 0, samples)


def sample(prompt: PromptId, index: int) -> SampleId:
    return SampleId(*prompt, 0, index)


def generated(prompt: PromptId, index: int, tokens: int, prompt_tokens: int = 10) -> events.Generated:
    return events.Generated(sample(prompt, index), prompt_tokens, tokens, FinishReason.STOP, (), "e")


def test_a_round_is_its_responses_and_the_seconds_until_the_last_is_back() -> None:
    works = folded(
        [
            (100.0, opened()),
            (100.0, launched(FIRST)),
            (100.0, launched(SECOND)),
            (104.0, generated(FIRST, 1, 40)),
            (102.0, generated(FIRST, 0, 20, 10)),
            (109.0, generated(SECOND, 0, 90, 30)),
            (109.5, events.Stopped(sample(SECOND, 1), 70, "e")),
            (110.0, events.GroupDeferred(SECOND, 0, DeferReason.VERSION_GONE)),
        ]
    )
    all_of_it = Responses(4, 3, (20, 40, 90), (70,))
    assert works.for_round(1) == RoundWork(9.5, 20.0, all_of_it)


def test_what_is_stopped_and_not_back_yet_ran_as_long_as_any() -> None:
    deferred = events.GroupDeferred(FIRST, 0, DeferReason.TOO_LONG)
    works = folded([(0.0, opened()), (0.0, launched(FIRST)), (5.0, generated(FIRST, 0, 50)), (5.0, deferred)])
    work = works.for_round(1)
    assert work is not None
    assert work.responses == Responses(2, 1, (50,), (50,))


def test_what_was_stopped_since_its_group_had_enough_counts_as_complete() -> None:
    stopped = events.Stopped(sample(FIRST, 1), 20, "e")
    works = folded([(0.0, opened()), (0.0, launched(FIRST)), (5.0, generated(FIRST, 0, 50)), (6.0, stopped)])
    work = works.for_round(1)
    assert work is not None
    assert work.responses == Responses(2, 2, (20, 50))


def test_a_stopped_response_that_had_ended_counts_as_complete() -> None:
    stopped = events.Stopped(sample(FIRST, 1), 60, "e", finished=True)
    works = folded([(0.0, opened()), (0.0, launched(FIRST)), (5.0, generated(FIRST, 0, 50)), (6.0, stopped)])
    work = works.for_round(1)
    assert work is not None
    assert work.responses == Responses(2, 2, (50, 60), ())


def test_a_continued_response_counts_with_the_tokens_of_each_round() -> None:
    works = folded(
        [
            (0.0, opened()),
            (0.0, launched(FIRST)),
            (4.0, generated(FIRST, 0, 30)),
            (4.0, events.GroupCarried(FIRST, 0)),
            (4.0, events.Paused(sample(FIRST, 1), 25, (), "e")),
            (5.0, opened(2)),
            (5.0, events.GroupAdopted(2, FIRST, 0)),
            (5.0, events.Resumed((sample(FIRST, 1),))),
            (9.0, generated(FIRST, 1, 65)),
        ]
    )
    first, second = works.for_round(1), works.for_round(2)
    assert first is not None
    assert second is not None
    assert first.responses == Responses(2, 1, (30,), (25,))
    assert second.responses == Responses(1, 1, (40,), ())


def test_a_round_without_responses_has_no_work_and_a_committed_one_is_forgotten() -> None:
    works = folded([(0.0, opened()), (0.0, launched(FIRST))])
    assert works.for_round(1) is None
    assert works.for_round(7) is None
    works.fold(events.Event(3, 1, 1.0, generated(FIRST, 0, 5)))
    assert works.for_round(1) is not None
    works.fold(events.Event(4, 1, 2.0, events.StepCommitted(1, 1, 1, ())))
    assert works.for_round(1) is None


def test_many_lengths_are_given_as_quantiles_with_the_longest() -> None:
    count = 4 * QUANTILES
    bodies = [(1.0, generated(FIRST, index, index + 1)) for index in range(count)]
    work = folded([(0.0, opened()), (0.0, launched(FIRST, count)), *bodies]).for_round(1)
    assert work is not None
    lengths = work.responses.lengths
    assert (len(lengths), lengths[-1], work.responses.completed) == (QUANTILES, count, count)
    assert list(lengths) == sorted(lengths)
