from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.rules import MAX_DRAWS_PER_ROUND
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.samples import GradeKind, SampleId
from tests.rounds.policies import Racing
from tests.rounds.world import World


def bodies(world: World, kind: type) -> list:
    return [event.body for event in world.log if isinstance(event.body, kind)]


def started(steps: int, policy: Synchronous | Racing, score: Callable[[SampleId], float] | None = None) -> World:
    world = World(policy, policy.group_size, **({"score": score} if score else {}), steps=steps)
    world.start()
    return world


def test_a_job_is_a_row_of_rounds_of_whole_groups() -> None:
    world = started(3, Synchronous(prompts_per_round=2, group_size=4))
    world.run()
    assert [len(batch) for batch in world.batches.values()] == [8, 8, 8]
    assert [b.version for b in bodies(world, events.RoundOpened)] == [0, 1, 2]
    assert [b.version for b in bodies(world, events.Published)] == [0, 1, 2, 3]
    assert world.ledger.trained == 6
    assert not world.ledger.rounds


def test_the_next_round_waits_for_the_publication() -> None:
    world = started(2, Synchronous(prompts_per_round=1, group_size=1))
    world.publish()
    world.finish(SampleId(0, 0, 0, 0))
    world.grade(SampleId(0, 0, 0, 0))
    world.train()
    assert world.ledger.step == 1
    assert not world.samples(SampleState.RUNNING)
    world.publish()
    assert world.samples(SampleState.RUNNING) == [SampleId(0, 1, 0, 0)]


@given(seed=st.integers(0, 10_000), drop=st.booleans())
def test_order_of_generation_and_grading_changes_nothing(seed: int, drop: bool) -> None:
    policy = Synchronous(prompts_per_round=2, group_size=2, drop_zero_variance=drop)
    score = lambda sample: float((sample.row * 7 + sample.index * (sample.row % 3)) % 2)  # noqa: E731
    in_order, shuffled = started(3, policy, score), started(3, policy, score)
    in_order.run()
    shuffled.run(random.Random(seed).choice)
    assert in_order.batches == shuffled.batches
    assert in_order.fate == shuffled.fate


@given(first=st.integers(0, 10_000), second=st.integers(0, 10_000))
def test_reward_latency_does_not_choose_samples(first: int, second: int) -> None:
    """With racing, the same order of generation gives the same batches, whatever the order in which graders answer."""
    batches = []
    for seed in (first, second):
        world, order, grading = started(3, Racing(2, 2)), random.Random(7), random.Random(seed)
        while world.ledger.step < 3:
            running, generated = world.samples(SampleState.RUNNING), world.samples(SampleState.GENERATED)
            undecided = [s for s in running if not world.ledger.groups[s.prompt].completed]
            if undecided:
                world.finish(order.choice(sorted(undecided)))
            elif generated:
                world.grade(grading.choice(generated))
            else:
                assert world.train() or world.publish()
        batches.append(world.batches)
    assert batches[0] == batches[1]


def test_a_grader_error_drops_the_group_and_the_batch_is_smaller() -> None:
    world = started(1, Synchronous(prompts_per_round=2, group_size=2))
    world.publish()
    for sample in world.samples(SampleState.RUNNING):
        world.finish(sample)
    world.grade(SampleId(0, 0, 0, 1), GradeKind.GRADER_ERROR)
    assert world.fate == {(0, 0): "dropped"}
    assert not world.grade(SampleId(0, 0, 0, 0)), "a late grade of a dropped group"
    world.run()
    assert [s.prompt.row for s in world.batches[1]] == [1, 1]
    assert bodies(world, events.GroupDropped)[0].reason is DropReason.GRADER_ERROR


def test_timeouts_wrong_answers_and_errors_are_counted_separately() -> None:
    world = started(1, Synchronous(prompts_per_round=1, group_size=4))
    world.publish()
    for sample in world.samples(SampleState.RUNNING):
        world.finish(sample)
    for index, kind in enumerate([GradeKind.TIMEOUT, GradeKind.SCORED, GradeKind.WRONG_FORMAT]):
        world.grade(SampleId(0, 0, 0, index), kind)
    assert world.ledger.rounds[1].grades == {
        GradeKind.TIMEOUT: 1,
        GradeKind.SCORED: 1,
        GradeKind.WRONG_FORMAT: 1,
    }
    world.grade(SampleId(0, 0, 0, 3))
    world.train()
    assert len(world.batches[1]) == 4, "a timeout is the response's doing: its group trains"


def test_groups_of_equal_rewards_are_replaced() -> None:
    policy = Synchronous(prompts_per_round=2, group_size=2, drop_zero_variance=True)
    world = started(1, policy, lambda sample: float(sample.row >= 3 and sample.index))
    world.run()
    assert [s.row for s in world.batches[1]] == [3, 3, 4, 4]
    assert world.ledger.dropped == {DropReason.ZERO_VARIANCE: 3}


def test_replacement_ends_when_nothing_can_be_learned() -> None:
    policy = Synchronous(prompts_per_round=2, group_size=2, drop_zero_variance=True)
    world = started(1, policy, lambda sample: 1.0)
    world.run()
    assert world.batches == {1: ()}
    assert world.ledger.dropped == {DropReason.ZERO_VARIANCE: 2 * MAX_DRAWS_PER_ROUND}


def test_a_lost_sample_is_relaunched_under_its_id() -> None:
    world = started(1, Synchronous(prompts_per_round=1, group_size=2))
    world.publish()
    sample = SampleId(0, 0, 0, 1)
    world.lose(sample)
    assert bodies(world, events.Relaunched) == [events.Relaunched(sample)]
    assert sample in world.samples(SampleState.RUNNING)
    world.run()
    assert world.batches[1] == (SampleId(0, 0, 0, 0), sample)


def test_kept_data_that_is_lost_while_training_is_made_and_graded_again() -> None:
    world = started(1, Synchronous(prompts_per_round=1, group_size=2))
    world.publish()
    world.run_until_training()
    sample = SampleId(0, 0, 0, 0)
    assert world.lose(sample)
    assert world.samples(SampleState.LOST) == [sample], "the trainer may have read it before"
    assert world.train()
    assert len(bodies(world, events.StepFailed)) == 1
    assert world.finish(sample)
    assert world.grade(sample)
    world.run()
    assert world.batches[1] == (sample, SampleId(0, 0, 0, 1))
    assert len(bodies(world, events.StepStarted)) == 2


def test_tokens_of_other_weights_are_not_trained() -> None:
    world = started(1, Synchronous(prompts_per_round=1, group_size=2))
    world.publish()
    world.finish(SampleId(0, 0, 0, 0), version=5)
    assert world.samples(SampleState.RUNNING) == [SampleId(0, 0, 1, 0), SampleId(0, 0, 1, 1)]
    world.run()
    assert {s.attempt for s in world.batches[1]} == {1}


@pytest.mark.parametrize("events_lived_through", [5, 17, 29])
def test_a_restart_repeats_the_same_events(events_lived_through: int) -> None:
    """From the boundary on, batches and final state are the same as for a job that never stopped."""
    policy = Synchronous(prompts_per_round=2, group_size=2, drop_zero_variance=True)
    whole, broken = started(4, policy), started(4, policy)
    whole.run()
    for _ in range(events_lived_through):
        if running := broken.samples(SampleState.RUNNING):
            broken.finish(running[-1])
        elif generated := broken.samples(SampleState.GENERATED):
            broken.grade(generated[-1])
        else:
            assert broken.train() or broken.publish()
    broken.start()
    broken.run()
    assert broken.batches == whole.batches
    ours, theirs = to_snapshot(broken.ledger), to_snapshot(whole.ledger)
    assert {**ours, "seq": 0, "incarnation": 0} == {**theirs, "seq": 0, "incarnation": 0}
