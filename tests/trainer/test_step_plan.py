"""A step is cut into minibatches by whole groups, whatever the order of the dataset, of arrival and the number of ranks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.algorithm import AlgorithmSpec, resolve
from longboat_runtime.samples import PromptId, SampleSize, SegmentSize
from longboat_runtime.trainer.step_plan import SegmentPlace, StepPlan, cut, plan_step

GROUP_SIZE = 4
prompts = st.lists(st.builds(PromptId, st.integers(0, 2), st.integers(0, 500)), min_size=1, max_size=24, unique=True)
seeds, steps, parts = st.integers(0, 2**31 - 1), st.integers(1, 10_000), st.integers(1, 8)


def samples_of(groups: list[PromptId]) -> list[PromptId]:
    """The group of each sample."""
    return [group for group in groups for _ in range(GROUP_SIZE)]


def plan(groups: list[PromptId], *, minibatches: int, ranks: int = 1) -> StepPlan:
    samples = samples_of(groups)
    sizes = [SampleSize((SegmentSize(8 + i % 7, 5 + i % 7),), truncated=False) for i in range(len(samples))]
    return plan_step(
        sizes,
        samples,
        resolve(AlgorithmSpec()),
        step=3,
        seed=1,
        denominator=len(samples),
        max_tokens=16,
        capacity=64,
        ranks=ranks,
        minibatches=minibatches,
    )


@given(prompts, parts, seeds, steps)
def test_groups_stay_whole_and_minibatches_differ_by_one_group_at_most(
    groups: list[PromptId], count: int, seed: int, step: int
) -> None:
    samples = samples_of(groups)
    minibatches = cut(samples, count, seed, step)
    assert sorted(i for minibatch in minibatches for i in minibatch) == list(range(len(samples)))
    assert len(minibatches) == min(count, len(groups)), "none is empty"
    found = [Counter(samples[i] for i in minibatch) for minibatch in minibatches]
    assert all(size == GROUP_SIZE for minibatch in found for size in minibatch.values())
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(st.data(), prompts, parts, seeds, steps)
def test_the_order_of_arrival_is_irrelevant(
    data: st.DataObject, groups: list[PromptId], count: int, seed: int, step: int
) -> None:
    arrived = data.draw(st.permutations(samples_of(groups)))
    one, other = samples_of(groups), arrived
    assert [{one[i] for i in minibatch} for minibatch in cut(one, count, seed, step)] == [
        {other[i] for i in minibatch} for minibatch in cut(other, count, seed, step)
    ]


@given(prompts, parts, st.integers(2, 4))
def test_every_number_of_ranks_has_the_same_minibatches(groups: list[PromptId], count: int, ranks: int) -> None:
    def members(minibatches: int, ranks: int) -> list[list[SegmentPlace]]:
        planned = plan(groups, minibatches=minibatches, ranks=ranks)
        return [sorted(place for of_rank in bins for bin_ in of_rank for place in bin_) for bins in planned.minibatches]

    assert members(count, ranks) == members(count, 1)


def test_domains_that_stand_one_after_the_other_in_the_dataset_meet_in_minibatches() -> None:
    """Two domains of 16 rows each, in two minibatches of 20 steps: in the dataset's order none would have both."""
    groups = [PromptId(0, row) for row in range(32)]
    mixed = [
        {group.row < 16 for group in {samples_of(groups)[i] for i in minibatch}}
        for step in range(1, 21)
        for minibatch in cut(samples_of(groups), 2, 7, step)
    ]
    assert mixed == [{True, False}] * 40


def test_another_step_and_another_seed_shuffle_in_another_way() -> None:
    samples = samples_of([PromptId(0, row) for row in range(32)])
    assert cut(samples, 4, 0, 1) == cut(samples, 4, 0, 1)
    assert cut(samples, 4, 0, 1) != cut(samples, 4, 0, 2)
    assert cut(samples, 4, 0, 1) != cut(samples, 4, 1, 1)


def test_one_minibatch_is_all_samples_in_their_order() -> None:
    groups = [PromptId(0, row) for row in (3, 1, 2)]
    assert cut(samples_of(groups), 1, 9, 9) == [list(range(12))]
