"""Rounds that leave unfinished responses to the next round: nothing is discarded, and token versions are right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.samples import GradeKind, PromptId, SampleId, VersionSpan
from tests.rounds.test_tail_batching import bodies
from tests.rounds.world import World


def started(
    steps: int, prompts: int, group_size: int, prompt_overcommit: float = 1.5, drop_zero_variance: bool = False
) -> World:
    world = World(
        ContinueUnfinished(prompts, group_size, prompt_overcommit, drop_zero_variance), group_size, steps=steps
    )
    world.start()
    return world


def next_round(world: World) -> None:
    """Trains the kept groups, publishes, and opens the next round."""
    while generated := world.samples(SampleState.GENERATED):
        world.grade(generated[0])
    assert world.train()
    assert world.publish()


def test_a_round_ends_with_its_first_complete_prompts_and_the_others_continue() -> None:
    world = started(steps=4, prompts=2, group_size=2)
    world.publish()
    slow = PromptId(0, 1)
    for sample in [s for s in world.samples(SampleState.RUNNING) if s.prompt != slow]:
        world.finish(sample)
    assert list(world.view.carried) == [slow]
    assert world.pausing == [SampleId(0, 1, 0, 0), SampleId(0, 1, 0, 1)]
    for sample in list(world.pausing):
        world.paused(sample)
    next_round(world)
    (round_,) = world.view.rounds.values()
    assert list(round_.groups) == [slow, PromptId(0, 3), PromptId(0, 4)], "carried prompts first"
    assert (round_.adopted, round_.launched, round_.version) == (1, 2, 1)
    assert not world.view.carried
    for index in (0, 1):
        world.finish(SampleId(0, 1, 0, index))
    spans = [world.view.sample(SampleId(0, 1, 0, index)).spans for index in (0, 1)]
    assert spans == [
        (VersionSpan(1, 0, 3),),
        (VersionSpan(0, 0, 1), VersionSpan(1, 1, 5)),
    ], "the first had no token when it was paused"


def test_what_finishes_while_it_is_being_paused_counts() -> None:
    world = started(steps=4, prompts=1, group_size=1, prompt_overcommit=2.0)
    world.publish()
    world.finish(SampleId(0, 0, 0, 0))
    world.finish(SampleId(0, 1, 0, 0))
    world.grade(SampleId(0, 0, 0, 0))
    world.train()
    assert world.grade(SampleId(0, 1, 0, 0)), "grading doesn't wait for a round"
    world.publish()
    (round_,) = world.view.rounds.values()
    assert list(round_.kept) == [PromptId(0, 1)], "complete and graded before the round began"
    assert world.training == [2], "so there was nothing to wait for"
    assert list(world.view.carried) == [PromptId(0, 2)]
    assert round_.grades == {GradeKind.SCORED: 1}, "grades between two rounds are counted in the second"


def test_a_response_returned_late_resumes_when_it_arrives() -> None:
    world = started(steps=4, prompts=1, group_size=2, prompt_overcommit=2.0)
    world.publish()
    for index in (0, 1):
        world.finish(SampleId(0, 0, 0, index))
    early, late = world.pausing
    world.paused(early)
    next_round(world)
    assert world.view.sample(early).state is SampleState.RUNNING
    assert world.view.sample(late).state is SampleState.PAUSED
    world.paused(late)
    assert world.view.sample(late).state is SampleState.RUNNING


def test_a_round_counts_the_tokens_that_it_made_and_throws_none_away() -> None:
    world = started(steps=2, prompts=1, group_size=2, prompt_overcommit=2.0)
    world.publish()
    for index in (0, 1):
        world.finish(SampleId(0, 0, 0, index))
    for sample in list(world.pausing):
        world.paused(sample)
    (round_,) = world.view.rounds.values()
    assert round_.generated_tokens == (3 + 4) + (0 + 1)
    next_round(world)
    world.run()
    made = {sample: spans[-1].end for sample, spans in world.made.items()}
    assert sum(made.values()) == (3 + 4) + (3 + 5)
    assert not world.stopping


@given(
    prompts=st.integers(1, 5),
    steps=st.integers(1, 9),
    overcommit=st.sampled_from([1.0, 1.1, 1.25, 1.5, 2.0, 4.0]),
    drop=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_every_prompt_is_trained_once_and_none_is_left(
    prompts: int, steps: int, overcommit: float, drop: bool, seed: int
) -> None:
    world = started(steps, prompts, 2, overcommit, drop)
    world.run(random.Random(seed).choice)
    ledger = world.ledger
    assert (ledger.step, len(ledger.queue), len(ledger.groups), len(ledger.carried)) == (steps, 0, 0, 0)
    assert list(world.fate.values()).count("trained") == steps * prompts or drop
    assert len(world.fate) == ledger.drawn
    attempts = {body.attempt for body in bodies(world, events.Launched)}
    assert attempts == {0}, "nothing is drawn again"


@given(seed=st.integers(0, 10_000))
def test_grading_never_decides_what_is_kept(seed: int) -> None:
    orders = [None, random.Random(seed), random.Random(seed + 1)]
    outcomes = []
    for order in orders:
        world = started(4, 3, 2, 2.0)
        rank = lambda sample: random.Random(f"{seed} {sample}").random()  # noqa: E731
        while True:
            running, generated = world.samples(SampleState.RUNNING), world.samples(SampleState.GENERATED)
            if world.pausing:
                world.paused(world.pausing[0])
            elif generated and not (order is not None and running and order.random() < 0.7):
                world.grade(generated[0] if order is None else order.choice(generated))
            elif running:
                world.finish(min(running, key=rank))
            elif not (world.train() or world.publish()):
                break
        outcomes.append(world.batches)
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_without_overcommit_it_is_the_synchronous_policy() -> None:
    world = started(steps=3, prompts=2, group_size=2, prompt_overcommit=1.0)
    world.run(random.Random(1).choice)
    assert not bodies(world, events.GroupCarried)
    assert set(world.oldest.values()) == {0}


def test_a_grader_error_drops_a_carried_group_once_it_is_complete() -> None:
    world = started(steps=3, prompts=1, group_size=2, prompt_overcommit=2.0)
    world.publish()
    for sample in (SampleId(0, 1, 0, 0), SampleId(0, 0, 0, 0), SampleId(0, 0, 0, 1)):
        world.finish(sample)
    world.grade(SampleId(0, 1, 0, 0), GradeKind.GRADER_ERROR)
    assert list(world.view.carried) == [PromptId(0, 1)]
    world.paused(world.pausing[0])
    next_round(world)
    world.finish(SampleId(0, 1, 0, 1))
    world.grade(SampleId(0, 1, 0, 1))
    assert world.ledger.dropped == {DropReason.GRADER_ERROR: 1}
    world.run()
    assert world.ledger.step == 3


@pytest.mark.parametrize("stored", [True, False])
def test_carried_tokens_survive_a_driver_if_the_store_does(stored: bool) -> None:
    world = started(steps=4, prompts=2, group_size=2)
    world.publish()
    slow = SampleId(0, 1, 0, 1)
    for sample in [s for s in world.samples(SampleState.RUNNING) if s != slow][:5]:
        world.finish(sample)
    world.paused(slow)
    while generated := world.samples(SampleState.GENERATED):
        world.grade(generated[0])
    world.train()
    world.start()
    if not stored:
        for sample in (slow, SampleId(0, 1, 0, 0)):
            world.lose(sample)
    world.publish()
    assert world.view.sample(slow).state is SampleState.RUNNING
    world.finish(slow)
    begun = (VersionSpan(0, 0, 1), VersionSpan(1, 1, 5)) if stored else (VersionSpan(1, 0, 4),)
    assert world.view.sample(slow).spans == begun
    world.run()
    assert len(world.fate) == world.ledger.drawn == 8
