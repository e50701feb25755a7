"""Episodes in the ledger: what is played again, what is given up, what is held up, and what their seconds decide."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.driver.watchdog import samples_line
from longboat_runtime.metrics.episodes import round_episodes, trained_episodes
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.episodes import (
    JUDGED_GROUPS,
    MOST_FAILED,
    EpisodeRound,
    EpisodeRounds,
    FailedShare,
    failed_share,
    newest,
    nothing_played,
    together,
)
from longboat_runtime.rounds.events import DeferReason, DropReason, Event, LogEntry
from longboat_runtime.rounds.records import GivenUp, RoundRecord, SampleRecord, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import MOST_ENVIRONMENT_LOSSES, reached
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import Episode, EpisodeEnd, FinishReason, PromptId, SampleId, SegmentSize
from tests.rounds.world import World

PROMPTS, GROUP = 2, 2
RACE = TailBatching(PROMPTS, GROUP, prompt_overcommit=2.0, sample_overcommit=1.0, episodes=True)


def started(policy: Synchronous | TailBatching = RACE, steps: int = 4) -> World:
    world = World(policy, GROUP, steps=steps, episodes=True)
    world.start()
    world.publish()
    return world


def group_of(world: World, number: int) -> list[SampleId]:
    return [*world.ledger.groups.values()][number].sample_ids


def bodies(world: World, kind: type) -> list:
    return [event.body for event in world.log if isinstance(event.body, kind)]


# --- The log ---


def test_events_of_plain_responses_are_written_as_before() -> None:
    sample = SampleId(0, 1, 0, 0)
    plain = events.Generated(sample, 2, 3, FinishReason.STOP, (), "engine-0")
    written = LogEntry(1, 1, 0.0, plain).to_json()
    assert not {"turns", "environment_seconds", "environment_cpu_seconds", "segments"} & written.keys()
    written = LogEntry(1, 1, 0.0, events.Lost(sample, "gone")).to_json()
    assert not {"cause", "held_up"} & written.keys()
    assert "environment_seconds" not in LogEntry(1, 1, 0.0, events.Stopped(sample, 3, "engine-0")).to_json()


def test_an_event_of_an_episode_is_read_as_written() -> None:
    sample = SampleId(0, 1, 0, 0)
    segments = (SegmentSize(20, 7), SegmentSize(9, 5))
    body = events.Generated(sample, 2, 12, FinishReason.STOP, (), "pod", segments, 4, 1.5, 0.25)
    entry = LogEntry(1, 1, 0.0, body)
    assert LogEntry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


# --- Losses ---


def test_an_episode_is_played_again_until_it_was_lost_three_times() -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    first, other = group_of(world, 0)[0], group_of(world, 0)[1]
    world.finish(other)
    for losses in range(1, MOST_ENVIRONMENT_LOSSES):
        assert world.lose_episode(first, held_up=losses == 1)
        record = world.ledger.sample(first)
        assert record is not None
        assert (record.state, record.playing, record.environment_losses) == (SampleState.RUNNING, False, losses)
        assert bodies(world, events.Relaunched)[-1] == events.Relaunched(first)
    assert world.lose_episode(first)
    assert bodies(world, events.GroupDropped) == [events.GroupDropped(first.prompt, 0, DropReason.ENVIRONMENT_ERROR)]


def test_a_group_whose_environment_fails_is_not_replaced() -> None:
    """The batch is smaller, against the same denominator; otherwise rows that fail would be traded for ones that don't."""
    world = started(Synchronous(PROMPTS, GROUP))
    for _ in range(MOST_ENVIRONMENT_LOSSES):
        world.lose_episode(group_of(world, 0)[0])
    world.run(steps=1)
    assert len(world.batches[1]) == GROUP


def test_a_race_waits_for_a_group_that_may_yet_be_played() -> None:
    """Of four groups two are to be trained: both failures fill these places, but a step that trains nothing helps nobody."""
    world = started()
    groups = [group_of(world, number) for number in range(4)]
    for samples in groups[:2]:
        for _ in range(MOST_ENVIRONMENT_LOSSES):
            world.lose_episode(samples[0])
    assert not left_out(world)
    for sample in groups[2]:
        world.finish(sample)
    assert left_out(world).keys() == {groups[3][0].prompt}


# --- Slots ---


def left_out(world: World) -> dict[PromptId, DeferReason]:
    return {body.prompt: body.reason for body in bodies(world, events.GroupDeferred)}


def race(world: World, *winners: int) -> None:
    for samples in [group_of(world, number) for number in winners]:
        for sample in samples:
            world.finish(sample)


def test_what_waits_for_a_slot_when_a_race_ends_is_held_up() -> None:
    world = started()
    playing, waiting = group_of(world, 2), group_of(world, 3)
    for sample in [*playing, waiting[0]]:
        assert world.begin_episode(sample)
    race(world, 0, 1)
    assert left_out(world) == {playing[0].prompt: DeferReason.TOO_LONG, waiting[0].prompt: DeferReason.HELD_UP}


def test_samples_that_wait_for_a_slot_do_not_run() -> None:
    world = started()
    world.begin_episode(group_of(world, 0)[0])
    waiting = world.ledger.counts[SampleState.RUNNING] - 1
    assert samples_line(View(world.ledger), episodes=True) == f"1 running, {waiting} waiting for a slot"


def test_what_is_played_again_since_its_pod_went_is_held_up_and_what_failed_is_not() -> None:
    world = started()
    evicted, failed = group_of(world, 2), group_of(world, 3)
    for sample in [*evicted, *failed]:
        world.begin_episode(sample)
    world.lose_episode(evicted[0], held_up=True)
    world.lose_episode(failed[0])
    for sample in (evicted[0], failed[0]):
        world.begin_episode(sample)
    race(world, 0, 1)
    assert left_out(world) == {evicted[0].prompt: DeferReason.HELD_UP, failed[0].prompt: DeferReason.TOO_LONG}


def test_what_was_played_again_and_has_ended_holds_nothing_up() -> None:
    world = started()
    group = group_of(world, 2)
    for sample in [*group, *group_of(world, 3)]:
        world.begin_episode(sample)
    world.lose_episode(group[0], held_up=True)
    world.finish(group[0])
    race(world, 0, 1)
    assert left_out(world)[group[0].prompt] is DeferReason.TOO_LONG


def test_responses_without_an_environment_are_never_held_up() -> None:
    world = World(TailBatching(PROMPTS, GROUP, 2.0, 1.0), GROUP, steps=4)
    world.start()
    world.run()
    assert {body.reason for body in bodies(world, events.GroupDeferred)} == {DeferReason.TOO_LONG}


# --- The order of long rounds ---


@st.composite
def attempts(draw: st.DrawFn) -> list[GivenUp]:
    count = draw(st.integers(1, 6))
    seconds = st.lists(st.floats(0, 1e4), min_size=GROUP, max_size=GROUP) | st.just([])
    return [
        GivenUp(
            PromptId(0, row),
            0,
            1,
            draw(st.lists(st.none() | st.integers(0, 100_000), min_size=GROUP, max_size=GROUP)),
            draw(seconds),
            draw(st.booleans()),
        )
        for row in range(count)
    ]


@given(attempts())
def test_the_furthest_is_by_tokens_or_seconds_and_none_is_beyond_it(given_up: list[GivenUp]) -> None:
    shares = reached(given_up)
    assert all(0.0 <= share <= 1.0 for share in shares.values())
    assert max(shares.values()) == 1.0 or not any(attempt.longest or attempt.slowest for attempt in given_up)


@given(attempts())
def test_seconds_of_what_was_held_up_order_nothing(given_up: list[GivenUp]) -> None:
    without = [
        GivenUp(each.prompt, 0, 1, each.lengths, [] if each.held_up else each.seconds, each.held_up)
        for each in given_up
    ]
    assert reached(given_up) == reached(without)


@given(attempts())
def test_without_seconds_the_order_is_that_of_tokens(given_up: list[GivenUp]) -> None:
    plain = [GivenUp(each.prompt, 0, 1, each.lengths) for each in given_up]
    shares = reached(plain)
    by_tokens = sorted(plain, key=lambda each: -each.longest)
    assert sorted(shares, key=lambda prompt: -shares[prompt]) == [each.prompt for each in by_tokens]


def test_a_stopped_episode_leaves_its_seconds() -> None:
    world = started()
    playing = group_of(world, 2)
    for sample in [*playing, *group_of(world, 3)]:
        world.begin_episode(sample)
    race(world, 0, 1)
    while world.stopping:
        world.stopped(world.stopping[0])
    attempt = world.ledger.deferred_prompts[playing[0].prompt]
    assert attempt.seconds == [0.5, 0.5]
    assert attempt.slowest == 0.5


# --- The audit ---


def history(log: list[Event]) -> LengthHistory:
    folded = LengthHistory()
    for event in log:
        folded.fold(event)
    return folded


def test_the_audit_knows_seconds_and_leaves_out_what_was_held_up() -> None:
    world = started(steps=6)
    for sample in group_of(world, 2):
        world.begin_episode(sample)
    race(world, 0, 1)
    held_up = {prompt for prompt, reason in left_out(world).items() if reason is DeferReason.HELD_UP}
    assert len(held_up) == 1

    def give_back(samples: list[SampleId]) -> SampleId:
        while world.stopping:
            world.stopped(world.stopping[0])
        return samples[0]

    world.run(give_back)
    folded = history(world.log)
    window = folded.window()
    assert window
    assert not held_up & {each.prompt for each in window}
    for each in window:
        tokens, milliseconds = each.lengths("maze"), each.milliseconds("maze")
        assert len(tokens.finished) == len(milliseconds.finished)
        assert len(tokens.trained) == len(milliseconds.trained)
        assert {*milliseconds.finished} <= {1500, 2500}
        assert milliseconds.domain == "maze"
    assert (
        LengthHistory.from_snapshot(json.loads(json.dumps(folded.to_snapshot()))).to_snapshot() == folded.to_snapshot()
    )


def test_the_history_of_plain_responses_is_saved_as_before() -> None:
    world = World(TailBatching(PROMPTS, GROUP, 1.5, 1.0), GROUP, steps=4)
    world.start()
    world.run()
    for each in history(world.log).to_snapshot()["prompts"]:
        assert not {"seconds", "held_up"} & each.keys()


# --- Rounds ---


def entries(*timed: tuple[float, events.Body]) -> EpisodeRounds:
    rounds = EpisodeRounds()
    for number, (time, body) in enumerate(timed, 1):
        rounds.fold(LogEntry(number, 1, time, body))
    return rounds


def test_the_share_of_time_that_slots_were_waited_for() -> None:
    prompt = PromptId(0, 0)
    first, second = (SampleId(0, 0, 0, index) for index in range(2))
    rounds = entries(
        (0.0, events.RoundOpened(1, RoundKind.SHORT, 0)),
        (0.0, events.Launched(1, prompt, 0, 2)),
        (0.0, events.EpisodeStarted(first, 0.0)),
        (4.0, events.Generated(first, 1, 1, FinishReason.STOP, (), "a")),
        (4.0, events.EpisodeStarted(second, 4.0)),
        (12.0, events.Generated(second, 1, 1, FinishReason.STOP, (), "a")),
    )
    round_ = rounds.trained(1)
    assert (round_.waited_seconds, round_.seconds, round_.waiting_share) == (4.0, 16.0, 0.25)
    assert rounds.trained(1) == EpisodeRound()


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), max_size=20))
def test_the_newest_rounds_are_judged_and_no_more_than_it_takes(rounds: list[tuple[int, float]]) -> None:
    shares = [FailedShare(groups, int(groups * part)) for groups, part in rounds]
    judged = newest(shares)
    assert judged == shares[len(shares) - len(judged) :]
    groups = sum(share.groups for share in judged)
    assert groups >= JUDGED_GROUPS or len(judged) == len(shares)
    assert not judged or groups - judged[0].groups < JUDGED_GROUPS
    total = together(judged)
    assert total.too_many == (total.groups > 0 and total.failed / total.groups > MOST_FAILED)
    assert newest(judged) == judged


def test_shares_are_by_reason_and_domain() -> None:
    fates = {
        PromptId(0, 0): DropReason.ENVIRONMENT_ERROR,
        PromptId(0, 1): None,
        PromptId(0, 2): None,
        PromptId(0, 3): DropReason.GRADER_ERROR,
    }
    round_ = EpisodeRound(fates, losses=3)
    assert failed_share(round_) == FailedShare(4, 1)
    metrics = round_episodes(round_, {PromptId(0, row): "ab"[row % 2] for row in range(4)})
    assert metrics["environment/dropped_share/environment_error"] == 0.25
    assert metrics["environment/dropped_share/a/environment_error"] == 0.5
    assert metrics["environment/dropped_share/b/environment_error"] == 0.0
    assert metrics["environment/dropped_share/b/grader_error"] == 0.5
    assert metrics["environment/losses"] == 3.0


def test_nothing_is_left_of_a_round_all_of_whose_groups_failed() -> None:
    failed = {DropReason.ENVIRONMENT_ERROR: 2}
    assert nothing_played(RoundRecord(1, RoundKind.SHORT, launched=2, dropped=failed, version=0))
    assert not nothing_played(RoundRecord(1, RoundKind.SHORT, launched=3, dropped=failed, version=0))
    assert nothing_played(
        RoundRecord(1, RoundKind.SHORT, launched=3, dropped=failed, deferred={DeferReason.HELD_UP: 1}, version=0)
    )
    assert not nothing_played(RoundRecord(1, RoundKind.SHORT, version=0))


def test_metrics_of_trained_episodes() -> None:
    one = SampleRecord(
        0, tokens=12, segments=(SegmentSize(40, 7), SegmentSize(20, 5)), turns=4, environment_seconds=1.0
    )
    counts = Episode("e", EpisodeEnd.FINISHED, 1.0, 3.0, repeats=1, ignored={"seed": 2, "top_p": 1}).requests
    assert counts == {"ignored": 3, "repeats": 1}
    other = SampleRecord(
        1, prompt_tokens=8, tokens=12, environment_seconds=3.0, environment_cpu_seconds=0.5, requests=counts
    )
    metrics = trained_episodes([one, other])
    assert metrics["environment/turns/mean"] == 2.5
    assert metrics["environment/segments/max"] == 2.0
    assert metrics["environment/seconds/mean"] == 2.0
    assert metrics["environment/cpu_seconds/mean"] == 0.25
    assert [metrics[f"environment/{name}"] for name in ("ignored", "repeats", "undelivered")] == [3.0, 1.0, 0.0]
    assert metrics["environment/computed_to_trained"] == 80 / 24
    assert trained_episodes([]) == {}


def test_an_episode_one_of_whose_turns_kills_engines_is_given_up_at_once() -> None:
    """So many have died by then; before it is played its engines count as those of a response."""
    world = started(Synchronous(PROMPTS, GROUP))
    playing, waiting = group_of(world, 0)[0], group_of(world, 1)[0]
    world.begin_episode(playing)
    for sample in (playing, waiting):
        world.lose(sample, engine_died=True)
    assert bodies(world, events.GroupDropped) == [events.GroupDropped(playing.prompt, 0, DropReason.ENGINE_DEATHS)]


def test_the_ledger_of_plain_responses_is_saved_as_before() -> None:
    world = World(TailBatching(PROMPTS, GROUP, 2.0, 1.0), GROUP, steps=4)
    world.start()
    world.publish()
    race(world, 0, 1)
    while world.stopping:
        world.stopped(world.stopping[0])
    snapshot = to_snapshot(world.ledger)
    assert snapshot["given_up"]
    assert snapshot["groups"]
    assert not {"seconds", "held_up"} & {key for each in snapshot["given_up"] for key in each}
    new = {"turns", "environment_seconds", "environment_cpu_seconds", "playing", "environment_losses", "held_up"}
    assert not new & {key for group in snapshot["groups"] for sample in group["samples"] for key in sample}
