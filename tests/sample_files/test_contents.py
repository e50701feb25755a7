"""Which groups of a step are in its file."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.sample_files.contents import Fate, SampleGroup, candidates, choose, is_due
from longboat_runtime.samples import SampleId
from tests.sample_files.made import facts


@st.composite
def steps(draw: st.DrawFn, least: int = 0) -> list[SampleGroup]:
    """The groups of a step, each of one or two samples."""
    prompt = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 2))
    prompts = draw(st.lists(prompt, unique=True, min_size=least))
    scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    lengths = st.one_of(st.integers(1, 4), st.integers(1, 1000))
    fates = draw(st.sampled_from([list(Fate), [Fate.DROPPED]]))
    return [
        SampleGroup(
            tuple(
                facts(SampleId(*prompt, index), fate=fate, score=draw(scores), tokens=draw(lengths))
                for index in range(draw(st.integers(1, 2)))
            )
        )
        for prompt in prompts
        for fate in [draw(st.sampled_from(fates))]
    ]


SEEDS = {"seed": st.integers(0, 5), "step": st.integers(1, 5)}
COUNTS = st.one_of(st.none(), st.integers(1, 12))


@given(groups=steps(), count=COUNTS, shuffle=st.randoms(use_true_random=False), **SEEDS)
def test_the_choice_depends_on_nothing_but_the_groups(
    groups: list[SampleGroup], count: int | None, shuffle: random.Random, seed: int, step: int
) -> None:
    chosen = choose(groups, count, seed, step)
    assert len(chosen) == min(len(groups), len(groups) if count is None else count)
    assert [group.ids for group in chosen] == sorted(group.ids for group in chosen)
    shuffle.shuffle(groups)
    assert choose(groups, count, seed, step) == chosen


@given(groups=steps(), **SEEDS)
def test_every_fate_and_the_longest_best_and_worst_responses_are_there(
    groups: list[SampleGroup], seed: int, step: int
) -> None:
    three, six = choose(groups, 3, seed, step), choose(groups, 6, seed, step)
    assert {group.fate for group in three} == {group.fate for group in groups}
    samples = [sample for group in groups for sample in group.samples]
    shown = [sample for group in six for sample in group.samples]
    assert max((one.tokens for one in shown), default=0) == max((one.tokens for one in samples), default=0)
    for extreme in (min, max):
        of_all, of_shown = ([one.score for one in of if one.score is not None] for of in (samples, shown))
        assert extreme(of_all, default=None) == extreme(of_shown, default=None)


@given(groups=steps(least=10), count=st.one_of(st.none(), st.integers(1, 5)), **SEEDS)
def test_what_is_no_candidate_would_not_be_chosen(
    groups: list[SampleGroup], count: int | None, seed: int, step: int
) -> None:
    """Groups are given up one after the other, and only candidates are held."""
    held: list[SampleGroup] = []
    for group in groups:
        held = candidates([*held, group], count, seed, step)
        assert count is None or len(held) <= 3 * count + 3
    assert choose(held, count, seed, step) == choose(groups, count, seed, step)


def test_another_step_chooses_others() -> None:
    groups = [SampleGroup((facts(SampleId(0, row, 0, 0)),)) for row in range(100)]
    assert len({tuple(group.prompt for group in choose(groups, 5, 0, step)) for step in range(10)}) == 10


def test_the_first_step_every_few_and_the_last_have_a_file() -> None:
    assert [step for step in range(1, 26) if is_due(step, 25, 10)] == [1, 10, 20, 25]
    assert [step for step in range(1, 4) if is_due(step, 3, 1)] == [1, 2, 3]
