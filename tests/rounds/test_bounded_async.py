"""Rounds ahead of training: never further than allowed, and trained in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.samples import VersionSpan
from tests.rounds.test_tail_batching import bodies
from tests.rounds.world import World


def started(
    steps: int, prompts: int, group_size: int, max_staleness: int = 1, drop_zero_variance: bool = False
) -> World:
    world = World(BoundedAsync(prompts, group_size, max_staleness, drop_zero_variance), group_size, steps=steps)
    world.start()
    return world


def test_rounds_are_opened_as_far_ahead_as_allowed() -> None:
    world = started(steps=9, prompts=2, group_size=1, max_staleness=2)
    assert not world.view.rounds, "nothing serves yet"
    world.publish()
    assert [round_.version for round_ in world.view.rounds.values()] == [0, 0, 0]
    world.run_until_training()
    world.train()
    assert len(world.view.rounds) == 2, "the next one waits for new weights"
    world.publish()
    assert [round_.version for round_ in world.view.rounds.values()] == [0, 0, 1]


def test_responses_continue_with_new_weights() -> None:
    world = started(steps=3, prompts=1, group_size=2)
    world.publish()
    first, second, *ahead = world.samples(SampleState.RUNNING)
    for sample in (first, second):
        world.finish(sample)
        world.grade(sample)
    world.train()
    world.publish()
    world.finish(ahead[0])
    assert world.view.sample(ahead[0]).spans == (VersionSpan(0, 0, 1), VersionSpan(1, 1, 4))


def test_later_rounds_wait_for_earlier_ones() -> None:
    world = started(steps=4, prompts=1, group_size=1)
    world.publish()
    first, second = world.samples(SampleState.RUNNING)
    world.finish(second)
    world.grade(second)
    assert not world.training
    world.finish(first)
    world.grade(first)
    assert world.training == [1]


def test_grades_are_answered_while_nothing_serves() -> None:
    """A driver restarts while samples of the previous driver are being graded: their grades are reported only once."""
    world = started(steps=2, prompts=1, group_size=1)
    world.publish()
    first, second = world.samples(SampleState.RUNNING)
    for sample in (first, second):
        world.finish(sample)
    world.grade(first)
    world.train()
    world.start()
    assert world.view.serving is None
    world.grade(second)
    world.run()
    assert world.ledger.step == 2


@given(
    prompts=st.integers(1, 4),
    steps=st.integers(1, 9),
    bound=st.integers(1, 4),
    drop=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_no_trained_token_is_older_than_the_bound(prompts: int, steps: int, bound: int, drop: bool, seed: int) -> None:
    """Engines, graders and trainer take turns as they like."""
    world = started(steps, prompts, 2, bound, drop)
    chance = random.Random(seed)
    while world.ledger.step < steps:
        moves = [world.train, world.publish]
        if running := world.samples(SampleState.RUNNING):
            moves.append(lambda: world.finish(chance.choice(running)))
        if generated := world.samples(SampleState.GENERATED):
            moves.append(lambda: world.grade(chance.choice(generated)))
        if chance.random() < 0.02 and (known := running + generated):
            moves.append(lambda: world.lose(chance.choice(known)))
        chance.choice(moves)()
    assert max(world.oldest.values()) <= bound
    trained = [body.round for body in bodies(world, events.StepCommitted)]
    assert trained == sorted(trained) == list(range(1, steps + 1))
    assert world.ledger.drawn == len(world.fate)
    assert not world.ledger.groups
    assert drop or {len(batch) for batch in world.batches.values()} == {2 * prompts}


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_the_bound_is_reached(bound: int) -> None:
    world = started(12, 1, 1, bound)
    world.publish()
    world.run()
    assert max(world.oldest.values()) == bound
