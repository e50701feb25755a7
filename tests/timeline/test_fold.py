from __future__ import annotations

from dataclasses import replace

from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import PromptId, VersionSpan
from longboat_runtime.timeline.bars import Bar, Fate, Round, Timeline, Work, choose
from longboat_runtime.timeline.fold import fold
from tests.timeline.history import (
    EPOCH,
    A,
    B,
    C,
    Moment,
    accepted,
    generated,
    graded,
    long_round,
    numbered,
    sample,
    short_round,
    start,
)


def folded(*moments: Moment) -> Timeline:
    log = numbered(moments)
    accepted(log)
    return fold(log)


def shown(round_: Round, prompt: PromptId) -> list[tuple[int, float, float, str | None, int, Fate]]:
    """Index, start and end in seconds, engine, tokens and fate of each bar of a prompt."""
    bars = [bar for bar in round_.bars if bar.sample.prompt == prompt]
    return [(bar.sample.index, *seconds(bar), bar.engine, bar.tokens, bar.fate) for bar in bars]


def seconds(bar: Bar) -> tuple[float, float]:
    return round(bar.start - EPOCH, 3), round(bar.end - EPOCH, 3)


def test_a_kept_group_has_what_counts_what_is_surplus_and_what_was_made_again() -> None:
    (round_,) = folded(*start(), *short_round()).rounds
    assert shown(round_, A) == [
        (0, 1, 1.5, None, 0, Fate.LOST),
        (0, 2, 3, "e/2", 7, Fate.KEPT),
        (1, 1, 2.5, "e/10", 10, Fate.KEPT),
        (2, 1, 3, "e/2", 10, Fate.SURPLUS),
        (3, 1, 3, None, 0, Fate.SURPLUS),
    ]


def test_a_stopped_sample_has_its_engine_and_what_it_had_made() -> None:
    stopped = events.Stopped(sample(B, 1), 5, "e/10")
    (round_,) = folded(*start(), *short_round(), (4.1, stopped)).rounds
    assert shown(round_, B)[1] == (1, 1, 4, "e/10", 5, Fate.DEFERRED)


def test_a_stopped_sample_that_had_moved_has_on_its_last_engine_what_it_added() -> None:
    a = sample(A, 0)
    (round_,) = folded(
        *start(),
        (1, events.Drawn(0, (A,))),
        (1, events.RoundOpened(1, RoundKind.SHORT, 0)),
        (1, events.Launched(1, A, 0, 2)),
        (2, events.Moved(a, 100, (VersionSpan(0, 0, 100),), "e/0", "e/1")),
        (3, events.GroupDeferred(A, 0, events.DeferReason.TOO_LONG)),
        (3.1, events.Stopped(a, 150, "e/1")),
    ).rounds
    assert shown(round_, A)[:2] == [(0, 1, 2, "e/0", 100, Fate.MOVED), (0, 2, 3, "e/1", 50, Fate.DEFERRED)]
    assert round_.tokens == 150


def test_a_group_given_up_ends_what_still_runs_of_it() -> None:
    (round_,) = folded(*start(), *short_round()).rounds
    assert shown(round_, B) == [
        (0, 1, 3, "e/10", 10, Fate.DEFERRED),
        *((index, 1, 4, None, 0, Fate.DEFERRED) for index in (1, 2, 3)),
    ]
    assert [fate for *_, fate in shown(round_, C)] == [Fate.DROPPED, Fate.DROPPED, Fate.SURPLUS, Fate.SURPLUS]


def test_a_round_tells_its_kind_its_prompts_and_its_tokens() -> None:
    short, long = folded(*start(), *short_round(), *long_round()).rounds
    assert (short.number, short.kind, short.version, short.step) == (1, RoundKind.SHORT, 0, 1)
    assert (short.opened - EPOCH, (short.closed or 0) - EPOCH) == (1, 5)
    assert (short.kept, short.deferred, short.dropped, short.tokens) == (1, 1, 1, 57)
    assert (long.kind, long.kept, long.deferred, long.step) == (RoundKind.LONG, 1, 0, 2)
    assert [bar.sample.attempt for bar in long.bars] == [1, 1]


def test_a_step_that_trained_nothing_drops_what_its_round_kept() -> None:
    nothing = {"skipped": 1, "dropped": DropReason.NOT_FINITE}
    log = [
        (time, replace(body, **nothing) if isinstance(body, events.StepCommitted) else body)
        for time, body in [*start(), *short_round()]
    ]
    timeline = folded(*log)
    (round_,) = timeline.rounds
    assert (round_.kept, round_.deferred, round_.dropped) == (0, 1, 2)
    assert shown(round_, A)[1] == (0, 2, 3, "e/2", 7, Fate.DROPPED)
    assert [(span.work, span.done) for span in timeline.spans[1:2]] == [(Work.TRAIN, True)]


def test_what_the_trainer_did_is_in_order() -> None:
    spans = folded(*start(), *short_round(), *long_round()).spans
    assert [(span.work, span.step, span.start - EPOCH, span.end - EPOCH, span.done) for span in spans] == [
        (Work.PUBLISH, 0, 0, 0.5, True),
        (Work.TRAIN, 1, 5, 6, True),
        (Work.PUBLISH, 1, 6, 6.5, True),
        (Work.TRAIN, 2, 11, 12, True),
        (Work.PUBLISH, 2, 12, 12.5, True),
    ]


def test_what_goes_on_ends_with_the_log_and_is_open() -> None:
    timeline = folded(*start(), *short_round()[:8])
    (round_,) = timeline.rounds
    assert timeline.end == EPOCH + 2.5
    assert (round_.closed, round_.step, round_.kept) == (None, None, 0)
    assert shown(round_, B)[0] == (0, 1, 2.5, None, 0, Fate.OPEN)
    assert shown(round_, A)[2] == (1, 1, 2.5, "e/10", 10, Fate.OPEN), "generated, and not decided"


def test_a_kept_sample_whose_data_was_lost_has_its_seat_when_it_is_made_again() -> None:
    a = [sample(A, index) for index in range(2)]
    timeline = folded(
        *start(),
        (1, events.Drawn(0, (A,))),
        (1, events.RoundOpened(1, RoundKind.LONG, 0)),
        (1, events.Launched(1, A, 0, 2)),
        generated(2, a[0]),
        generated(2, a[1]),
        *graded(3, *a),
        (3, events.GroupKept(A, 0)),
        (3, events.RoundClosed(1)),
        (3, events.StepStarted(1, 1)),
        (4, events.StepFailed(1, 1, "the store has lost data")),
        (4, events.Lost(a[0], "the store has lost its data")),
        (4, events.Relaunched(a[0])),
        generated(5, a[0]),
    )
    assert shown(timeline.rounds[0], A) == [
        (0, 1, 2, "e/0", 10, Fate.LOST),
        (0, 4, 5, "e/0", 10, Fate.KEPT),
        (1, 1, 2, "e/0", 10, Fate.KEPT),
    ]
    assert [(span.work, span.done) for span in timeline.spans[1:]] == [(Work.TRAIN, False)]


def test_chunks_are_work_beside_the_round() -> None:
    timeline = fold(
        numbered(
            [
                *start(),
                (1, events.RoundOpened(1, RoundKind.LONG, 0)),
                (3, events.ChunkStarted(1, 1, 1, (A,))),
                (5, events.ChunkDone(1, 1)),
                (6, events.ChunkStarted(1, 1, 2, (B,))),
                (8, events.ChunksLost(1)),
            ]
        )
    )
    spans = [(span.work, span.step, span.start - EPOCH, span.end - EPOCH, span.done) for span in timeline.spans[1:]]
    assert spans == [(Work.STREAM, 1, 3, 5, True), (Work.STREAM, 1, 6, 8, False)]


def test_a_new_driver_ends_what_ran_at_the_last_that_is_known() -> None:
    before = numbered([*start(), *short_round()[:7], (2.2, events.PublishStarted(0))][:-1])
    after = numbered([*start(100), *((101, events.Relaunched(sample(A, index))) for index in range(4))], 2, 11)
    accepted([*before, *after])
    timeline = fold([*before, *after])
    assert shown(timeline.rounds[0], A)[:4] == [
        (0, 1, 1.5, None, 0, Fate.LOST),
        (0, 2, 2, None, 0, Fate.LOST),
        (0, 101, 101, None, 0, Fate.OPEN),
        (1, 1, 2, None, 0, Fate.LOST),
    ]
    assert [(gap.start - EPOCH, gap.end - EPOCH) for gap in timeline.gaps] == [(2, 100)]


def test_what_was_launched_before_the_log_is_left_out() -> None:
    """A job that goes on from another job's checkpoint begins with that one's open groups."""
    log = numbered([*start(step=7), generated(1, sample(A, 0)), *graded(2, sample(A, 0)), (2, events.GroupKept(A, 0))])
    assert fold(log).rounds == ()


def test_a_response_that_moved_has_a_bar_on_each_engine() -> None:
    a = [sample(A, index) for index in range(2)]
    spans = VersionSpan(0, 0, 6), VersionSpan(0, 0, 9)
    timeline = folded(
        *start(),
        (1, events.Drawn(0, (A,))),
        (1, events.RoundOpened(1, RoundKind.LONG, 0)),
        (1, events.Launched(1, A, 0, 2)),
        (2, events.Moved(a[0], 6, spans[:1], "e/0", "e/1")),
        (3, events.Moved(a[0], 9, spans[1:], "e/1", "e/2")),
        (4, events.Lost(a[0], "engine is gone", begun=spans[1:])),
        (5, events.Relaunched(a[0])),
        generated(6, a[0], "e/3", tokens=20),
    )
    assert [one for one in shown(timeline.rounds[0], A) if one[0] == 0] == [
        (0, 1, 2, "e/0", 6, Fate.MOVED),
        (0, 2, 3, "e/1", 3, Fate.MOVED),
        (0, 3, 4, None, 0, Fate.LOST),
        (0, 5, 6, "e/3", 11, Fate.OPEN),
    ]


def test_a_reshape_is_work_between_rounds() -> None:
    seconds = {"drain": 0.5, "start": 1.5}
    bodies = [measurements.Reshaped(2, "preemptions", seconds, failure) for failure in ("", "no memory")]
    timeline = folded(*start(), *short_round(), *((20 + 5 * i, body) for i, body in enumerate(bodies)))
    reshapes = [span for span in timeline.spans if span.work is Work.RESHAPE]
    assert [(span.step, span.start - EPOCH, span.end - EPOCH, span.done) for span in reshapes] == [
        (1, 18, 20, True),
        (1, 23, 25, False),
    ]


def test_a_pod_that_is_given_back_is_drained_until_the_event() -> None:
    timeline = folded(*start(), *short_round(), (20, measurements.PodDrained("pod-1", 1.5)))
    drains = [span for span in timeline.spans if span.work is Work.DRAIN]
    assert [(span.step, span.start - EPOCH, span.end - EPOCH, span.done) for span in drains] == [(1, 18.5, 20, True)]


def test_pools_have_the_grades_that_they_had_to_do_and_the_cpus_that_they_might_have() -> None:
    def pool(*asked: tuple[float, int]) -> measurements.PoolGrading:
        return measurements.PoolGrading(0, 0, 0.0, 0, 0.0, asked)

    first, second = short_round(), long_round(21)
    first.insert(
        -3, (5, measurements.RoundGraded(1, {"math": pool((0.0, 0)), "code": pool((0.0, 0), (1.5, 7), (4.0, 0))}))
    )
    second.insert(-3, (25, measurements.RoundGraded(2, {"code": pool((0.0, 3))})))
    before = numbered([*start(), (0.5, measurements.CpusGranted({"code": 1.0, "math": 3.0})), *first])
    moved = (20, measurements.CpusGranted({"code": 2.0, "math": 2.0}))
    log = [*before, *numbered([*start(20, step=1), moved, *second], 2, len(before) + 1)]
    accepted(log)
    timeline = fold(log)
    assert [pool.name for pool in timeline.pools] == ["code", "math"]
    code, math = timeline.pools
    assert [(time - EPOCH, asked) for time, asked in code.asked] == [(1, 0), (2.5, 7), (5, 0), (6.5, 0), (21, 3)]
    assert [(time - EPOCH, cpus) for time, cpus in code.cpus] == [(0.5, 1.0), (20, 2.0)]
    assert [(time - EPOCH, asked) for time, asked in math.asked] == [(1, 0), (6.5, 0)]
    chosen = choose(timeline, "2").pools[0]
    assert [(time - EPOCH, asked) for time, asked in chosen.asked] == [(21, 3)]
    assert [(time - EPOCH, cpus) for time, cpus in chosen.cpus] == [(21, 2.0)]
