"""Edits of the spec while a job runs: recorded at a step boundary and followed by every policy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.snapshot import from_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from tests.rounds.test_tail_batching import bodies
from tests.rounds.world import World
from tests.support.examples import examples

PROMPTS, GROUP = 2, 2
POLICIES: tuple[Policy, ...] = (
    Synchronous(PROMPTS, GROUP),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5),
    ByDomain(PROMPTS, GROUP, {name: TailBatching(1, GROUP, 2.0, 1.0) for name in "bc"}),
    ContinueUnfinished(PROMPTS, GROUP, prompt_overcommit=1.5),
    BoundedAsync(PROMPTS, GROUP, max_staleness=2),
)
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


def started(policy: Policy, steps: int) -> World:
    world = World(policy, GROUP, steps=steps)
    world.start()
    return world


def ended(world: World) -> tuple[int, set[int], int, int]:
    """The steps, the sizes of their batches, and how many prompts are left in the queue and in groups."""
    ledger = world.ledger
    return ledger.step, {len(batch) for batch in world.batches.values()}, len(ledger.queue), len(ledger.groups)


@every_policy
def test_an_edit_waits_for_the_commit_and_is_in_its_checkpoint(policy: Policy) -> None:
    world = started(policy, steps=4)
    world.publish()
    world.edit(9)
    assert world.view.steps == 4, "the step is being made"
    world.run(steps=1)
    changed, committed = [
        event.body for event in world.log if isinstance(event.body, events.SpecChanged | events.StepCommitted)
    ]
    assert (changed.steps, committed.step) == (9, 1)
    assert from_snapshot(world.boundary[0]).steps == 9


@every_policy
@pytest.mark.parametrize("seed", range(5))
def test_a_job_of_more_steps_drains_its_queue_at_the_new_end(policy: Policy, seed: int) -> None:
    world = started(policy, steps=3)
    pick = random.Random(seed).choice
    world.run(pick, steps=2)
    world.edit(6)
    world.run(pick)
    assert ended(world) == (6, {PROMPTS * GROUP}, 0, 0)


@every_policy
@pytest.mark.parametrize("published", [False, True])
def test_more_steps_at_the_moment_of_the_last_one(policy: Policy, published: bool) -> None:
    world = started(policy, steps=2)
    world.run(steps=2)
    if published:
        world.publish()
    world.edit(4)
    assert world.view.steps == 4, "no step is being made, so there is nothing to wait for"
    world.run()
    assert ended(world) == (4, {PROMPTS * GROUP}, 0, 0)


@every_policy
def test_fewer_steps_than_are_done_end_the_job_with_the_step_that_is_made(policy: Policy) -> None:
    world = started(policy, steps=8)
    world.run(steps=3)
    world.publish()
    world.edit(2)
    world.run()
    assert world.ledger.step == 4
    assert not bodies(world, events.PublishStarted)[-1].version > 4
    world.edit(6)
    world.run()
    assert world.ledger.step == 6, "and may be taken back"


@every_policy
@pytest.mark.parametrize("steps", [1, 5])
def test_a_driver_that_starts_follows_the_current_spec(policy: Policy, steps: int) -> None:
    world = started(policy, steps=3)
    world.run(steps=2)
    world.wanted = steps
    world.start()
    assert world.view.steps == steps
    world.run()
    assert world.ledger.step == max(steps, 2)


def test_a_number_that_cannot_be_changes_nothing() -> None:
    world = started(POLICIES[0], steps=3)
    assert not world.record(events.SpecChanged(0, 1, 1))
    assert world.view.steps == 3


@settings(max_examples=examples(60))
@given(
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 10_000),
    raises=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_whenever_steps_are_raised_everything_drawn_is_trained(policy: Policy, seed: int, raises: list[int]) -> None:
    """Engines, graders, trainer and edits take turns at random."""
    world, chance, left = started(policy, steps=1), random.Random(seed), list(raises)
    while left or world.ledger.step < world.wanted:
        moves = [world.train, world.publish]
        if left:
            moves.append(lambda: world.edit(world.wanted + left.pop()))
        if running := world.samples(SampleState.RUNNING):
            moves += [lambda: world.finish(chance.choice(running))] * 3
        if generated := world.samples(SampleState.GENERATED):
            moves += [lambda: world.grade(chance.choice(generated))] * 3
        if world.pausing:
            moves.append(lambda: world.paused(chance.choice(world.pausing)))
        chance.choice(moves)()
    assert ended(world) == (1 + sum(raises), {PROMPTS * GROUP}, 0, 0)
