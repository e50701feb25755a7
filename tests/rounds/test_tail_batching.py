"""Short and long rounds: which prompts are launched, win or wait, and that only their order changes."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import GradeKind, PromptId, SampleId
from tests.rounds.world import World

overcommits = st.sampled_from([1.0, 1.1, 1.125, 1.25, 1.5, 2.0])


def bodies(world: World, kind: type) -> list:
    return [event.body for event in world.log if isinstance(event.body, kind)]


def tail_batching(
    prompts_per_round: int,
    group_size: int,
    prompt_overcommit: float = 1.25,
    sample_overcommit: float = 1.0,
    drop_zero_variance: bool = False,
) -> TailBatching:
    return TailBatching(prompts_per_round, group_size, prompt_overcommit, sample_overcommit, drop_zero_variance)


def started(steps: int, policy: TailBatching) -> World:
    world = World(policy, policy.group_size, steps=steps)
    world.start()
    return world


def kinds(world: World) -> list[RoundKind]:
    return [body.kind for body in bodies(world, events.RoundOpened)]


def launches(world: World) -> dict[int, list[PromptId]]:
    found: dict[int, list[PromptId]] = {}
    for body in bodies(world, events.Launched):
        found.setdefault(body.round, []).append(body.prompt)
    return found


def test_the_slowest_prompts_wait_for_a_long_round() -> None:
    world = started(6, tail_batching(prompts_per_round=4, group_size=2))
    slow = {4, 9}
    world.run(lambda samples: min(samples, key=lambda sample: (sample.row in slow, sample)))
    assert [kind.value for kind in kinds(world)][:5] == ["Short"] * 4 + ["Long"]
    assert [len(prompts) for prompts in launches(world).values()][:5] == [5, 5, 5, 5, 4]
    assert {len(batch) for batch in world.batches.values()} == {8}


@given(prompts=st.integers(1, 8), overcommit=overcommits, seed=st.integers(0, 1000))
def test_share_of_long_rounds_is_that_of_the_closed_form(prompts: int, overcommit: float, seed: int) -> None:
    """(overcommit - 1) / overcommit, within one round, until the end of the run has an effect."""
    steps = 24
    world = started(steps + 40, tail_batching(prompts, 1, overcommit))
    world.run(random.Random(seed).choice, steps)
    assert world.ledger.step == steps
    share = 1 - 1 / Fraction(str(overcommit))
    assert abs(kinds(world)[:steps].count(RoundKind.LONG) - steps * share) <= 1


def test_fractions_of_a_prompt_are_carried_on() -> None:
    world = started(40, tail_batching(prompts_per_round=3, group_size=1))
    world.run()
    counts = [
        len(prompts) for prompts, kind in zip(launches(world).values(), kinds(world), strict=True) if kind == "Short"
    ]
    assert counts[:8] == [3, 4, 4, 4, 3, 4, 4, 4]


@given(
    prompts=st.integers(1, 5),
    steps=st.integers(1, 9),
    overcommit=overcommits,
    samples=st.sampled_from([1.0, 1.5]),
    drop=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_the_end_of_a_run_drains_the_queue(
    prompts: int, steps: int, overcommit: float, samples: float, drop: bool, seed: int
) -> None:
    world = started(steps, tail_batching(prompts, 2, overcommit, samples, drop))
    world.run(random.Random(seed).choice)
    ledger = world.ledger
    assert (ledger.step, len(ledger.queue), len(ledger.groups)) == (steps, 0, 0)
    fates = Counter(world.fate.values())
    assert fates["trained"] == steps * prompts or drop
    assert fates.total() == ledger.drawn, "every prompt drawn was trained or dropped, once"


@given(seed=st.integers(0, 10_000), errors=st.booleans())
def test_grading_never_decides_what_is_kept(seed: int, errors: bool) -> None:
    """The same responses in the same order give the same batches, whether they are graded at once or at any later time."""
    orders = [None, random.Random(seed), random.Random(seed + 1)]
    outcomes = []
    for order in orders:
        world = started(4, tail_batching(3, 2, 1.5, 1.5))
        rank = lambda sample: random.Random(f"{seed} {sample}").random()  # noqa: E731
        while True:
            running, generated = world.samples(SampleState.RUNNING), world.samples(SampleState.GENERATED)
            late = order is not None and running and order.random() < 0.7
            if generated and not late:
                sample = generated[0] if order is None else order.choice(generated)
                failed = errors and rank(sample) < 0.1
                world.grade(sample, GradeKind.GRADER_ERROR if failed else GradeKind.SCORED)
            elif running:
                world.finish(min(running, key=rank))
            elif not (world.train() or world.publish()):
                break
        outcomes.append(world.batches)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_surplus_response_is_stopped_and_never_waited_for() -> None:
    world = started(1, tail_batching(prompts_per_round=1, group_size=2, sample_overcommit=1.5))
    world.publish()
    for index in (2, 0):
        world.finish(SampleId(0, 0, 0, index))
    assert [body.samples for body in bodies(world, events.Aborted)] == [(SampleId(0, 0, 0, 1),)]
    world.run()
    assert world.batches[1] == (SampleId(0, 0, 0, 0), SampleId(0, 0, 0, 2))


def test_a_long_round_starts_with_the_longest_attempts() -> None:
    world = started(30, tail_batching(prompts_per_round=2, group_size=1, prompt_overcommit=1.5))
    while kinds(world).count(RoundKind.LONG) == 0:
        if running := world.samples(SampleState.RUNNING):
            world.finish(running[-1])
            for number, sample in enumerate(list(world.stopping)):
                tokens = 10 * len(world.view.deferred) + number
                assert world.record(events.Stopped(sample, tokens, "engine-0"))
            world.stopping.clear()
        elif generated := world.samples(SampleState.GENERATED):
            world.grade(generated[0])
        else:
            assert world.train() or world.publish()
    launched = launches(world)[max(launches(world))]
    assert launched == [PromptId(0, 3), PromptId(0, 0)], "the second to be deferred had got further"


def test_what_finished_while_it_was_being_stopped_has_its_whole_length() -> None:
    world = started(2, tail_batching(prompts_per_round=1, group_size=2, prompt_overcommit=2.0))
    world.publish()
    for index in (0, 1):
        world.finish(SampleId(0, 0, 0, index))
    late, cut = list(world.stopping)
    assert world.stopped(late, finished=True)
    assert world.stopped(cut)
    assert bodies(world, events.Stopped) == [
        events.Stopped(late, 3, "engine-0", finished=True),
        events.Stopped(cut, 2, "engine-0", finished=False),
    ]
    assert world.view.deferred[PromptId(0, 1)].longest == 3
    assert not world.view.awaits(late)
    assert not world.finish(late), "said twice"


def test_a_round_counts_the_tokens_that_were_thrown_away() -> None:
    world = started(2, tail_batching(prompts_per_round=1, group_size=2, prompt_overcommit=2.0))
    world.publish()
    for index in (0, 1):
        world.finish(SampleId(0, 0, 0, index))
    assert world.stopping == [SampleId(0, 1, 0, 0), SampleId(0, 1, 0, 1)]
    for sample in list(world.stopping):
        assert world.stopped(sample)
    (round_,) = world.view.rounds.values()
    assert (round_.generated_tokens, round_.stopped_tokens) == (3 + 4, 1 + 2)
    assert world.view.deferred[PromptId(0, 1)].longest == 2
    assert not world.record(events.Stopped(SampleId(0, 1, 0, 0), 9, "engine-0")), "said twice"


def test_long_rounds_race_in_no_way() -> None:
    world = started(40, TailBatching(prompts_per_round=2, group_size=2, prompt_overcommit=1.5, sample_overcommit=1.5))
    world.run(random.Random(3).choice)
    by_round = dict(zip(range(1, 41), kinds(world), strict=True))
    samples = {body.samples for body in bodies(world, events.Launched) if by_round[body.round] is RoundKind.LONG}
    assert samples == {2}
    deferred_in = {by_round[world_round] for world_round, reason in _deferrals(world) if reason is DeferReason.TOO_LONG}
    assert deferred_in == {RoundKind.SHORT}


def _deferrals(world: World) -> list[tuple[int, DeferReason]]:
    current, found = 0, []
    for event in world.log:
        match event.body:
            case events.RoundOpened(round=number):
                current = number
            case events.GroupDeferred(reason=reason):
                found.append((current, reason))
    return found


def test_without_overcommit_it_is_the_synchronous_policy() -> None:
    world = started(3, tail_batching(prompts_per_round=2, group_size=2, prompt_overcommit=1.0))
    world.run(random.Random(1).choice)
    assert set(kinds(world)) == {RoundKind.SHORT}
    assert not world.ledger.deferred


@pytest.mark.parametrize(("prompts", "audit_every"), [(2, 2), (3, 4), (3, 3)])
def test_audit_rounds_race_in_no_way_and_leave_the_flow_of_the_others_as_it_is(prompts: int, audit_every: int) -> None:
    world = started(200, TailBatching(prompts, 2, 1.25, sample_overcommit=1.5, audit_every=audit_every))
    while world.ledger.step < 100:
        if world.view.rounds and (running := world.samples(SampleState.RUNNING)):
            world.finish(running[0])
        elif generated := world.samples(SampleState.GENERATED):
            world.grade(generated[0])
        else:
            assert world.train() or world.publish()
    opened = bodies(world, events.RoundOpened)[:100]
    short = [body for body in opened if body.kind is RoundKind.SHORT]
    audits = {body.round for body in short if not body.racing}
    assert audits == {body.round for body in short[audit_every - 1 :: audit_every]}
    fresh = {body.prompt: body.samples for body in bodies(world, events.Launched) if body.round in audits}
    assert set(fresh.values()) == {2}
    assert all(len(launches(world)[number]) == prompts for number in audits)
    long = len(opened) - len(short)
    assert abs(long - (len(opened) - len(audits)) * Fraction(1, 5)) <= 1


@pytest.mark.parametrize("waiting_kind", ["queue", "deferred"])
def test_the_queue_survives_a_driver(waiting_kind: str) -> None:
    world = started(9, tail_batching(prompts_per_round=2, group_size=1, prompt_overcommit=1.5))
    world.publish()
    world.run_until_training()
    world.train()
    waiting = list(getattr(world.ledger, {"queue": "queue", "deferred": "deferred_prompts"}[waiting_kind]))
    assert len(waiting) == 1
    world.start()
    assert list(world.view.deferred) == waiting
    world.run()
    assert world.fate[waiting[0]] == "trained"


def test_suspended_races_are_synchronous_rounds() -> None:
    world = started(20, tail_batching(prompts_per_round=2, group_size=1, prompt_overcommit=1.5, sample_overcommit=2.0))
    world.publish()
    assert world.record(events.RacesSuspended(3))
    assert not world.record(events.RacesSuspended(2)), "more are suspended already"
    world.run(random.Random(1).choice)
    counts = [len(prompts) for prompts in launches(world).values()]
    assert counts[:5] == [3, 2, 2, 2, 3], "the first was open already"
    by_round = {body.round: body.samples for body in bodies(world, events.Launched)}
    assert [by_round[number] for number in range(1, 6)] == [2, 1, 1, 1, 2]
    assert kinds(world)[:5] == [RoundKind.SHORT] * 5
