"""Quotas of domains: they hold in every round, with policies that each know about one quota."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rounds import events
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.rules import phases
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import GradeKind, PromptId, SampleId
from tests.rounds.world import World
from tests.support.examples import examples

quotas_ = st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=1)
overcommits = st.sampled_from([1.0, 1.1, 1.125, 1.25, 1.5, 2.0, 3.5])


def tail_batching(
    quotas: dict[str, int], group_size: int, overcommit: float = 1.25, samples: float = 1.0, **options: bool
) -> ByDomain:
    rules = {
        domain: TailBatching(prompts, group_size, overcommit, samples, phase=phase, **options)
        for (domain, prompts), phase in zip(quotas.items(), phases(len(quotas)), strict=True)
    }
    return ByDomain(sum(quotas.values()), group_size, rules)


def started(steps: int, policy: ByDomain) -> World:
    world = World(policy, policy.group_size, steps=steps)
    world.start()
    return world


def bodies(world: World, kind: type) -> list:
    return [event.body for event in world.log if isinstance(event.body, kind)]


def trained(world: World) -> list[Counter[str]]:
    """The number of prompts of each step, by domain."""
    return [
        Counter(world.domain_of(row) for _, row in {sample.prompt for sample in samples})
        for _, samples in sorted(world.batches.items())
    ]


def launched(world: World) -> list[Counter[str]]:
    found: dict[int, Counter[str]] = {}
    for body in bodies(world, events.Launched):
        found.setdefault(body.round, Counter())[world.domain_of(body.prompt.row)] += 1
    return list(found.values())


def kinds(world: World) -> list[RoundKind]:
    return [body.kind for body in bodies(world, events.RoundOpened)]


@given(
    quotas=quotas_,
    steps=st.integers(1, 9),
    overcommit=overcommits,
    samples=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 9999),
)
def test_quotas_hold_in_every_round_and_the_end_drains_every_domain(
    quotas: dict[str, int], steps: int, overcommit: float, samples: float, seed: int
) -> None:
    world = started(steps, tail_batching(quotas, 2, overcommit, samples))
    world.run(random.Random(seed).choice)
    assert trained(world) == [Counter(quotas)] * steps
    assert (len(world.ledger.queue), len(world.ledger.groups), len(world.ledger.domains)) == (0, 0, 0)
    assert Counter(world.fate.values()) == {"trained": world.ledger.drawn}


@settings(max_examples=examples(50))
@given(quotas=quotas_, overcommit=overcommits, seed=st.integers(0, 1000))
def test_share_of_long_rounds_is_that_of_the_closed_form(quotas: dict[str, int], overcommit: float, seed: int) -> None:
    """(overcommit - 1) / overcommit, within one round, until the end of the run has an effect."""
    steps = 24
    world = started(steps + 40, tail_batching(quotas, 1, overcommit))
    world.run(random.Random(seed).choice, steps)
    assert world.ledger.step == steps
    share = 1 - 1 / Fraction(str(overcommit))
    for so_far in range(1, steps + 1):
        assert abs(kinds(world)[:so_far].count(RoundKind.LONG) - so_far * share) <= 1


def test_extra_prompts_of_small_quotas_come_in_turn() -> None:
    world = started(40, tail_batching({"a": 1, "b": 1, "c": 1}, 1))
    world.run()
    short = [counts for counts, kind in zip(launched(world), kinds(world), strict=True) if kind is RoundKind.SHORT]
    assert [counts.total() for counts in short][:8] == [3, 4, 4, 4, 3, 4, 4, 4]
    assert all(sum(counts[domain] for counts in short[:4]) == 5 for domain in "abc")


def test_a_domain_with_its_quota_ends_alone() -> None:
    """Its slow prompts are stopped immediately, while another domain is still racing."""
    world = started(20, tail_batching({"b": 2, "c": 2}, 1, overcommit=1.5))
    world.publish()
    b = [sample for sample in world.samples(SampleState.RUNNING) if world.domain_of(sample.row) == "b"]
    assert len(b) == 3
    world.finish(b[0])
    assert not world.stopping
    world.finish(b[2])
    assert world.stopping == [b[1]]
    assert list(world.view.deferred) == [b[1].prompt]
    (round_,) = world.view.rounds.values()
    assert (round_.part("b").deferred, round_.part("c").deferred) == ({"too_long": 1}, {})
    assert len(round_.part("c").groups) == 3, "it goes on"


def test_a_complete_prompt_beyond_the_quota_is_deferred() -> None:
    world = started(20, tail_batching({"b": 1, "c": 1}, 2, overcommit=2.0))
    world.publish()
    first, second = (prompt for prompt in world.view.groups if world.domain_of(prompt.row) == "b")
    for index in (0, 1):
        world.finish(SampleId(*first, 0, index))
    assert list(world.view.deferred) == [second]


def test_a_queue_of_more_than_two_quotas_forces_a_long_round_that_others_fill_up() -> None:
    """Domain b loses the weights of its groups again and again, so all of them are deferred."""
    world = started(30, tail_batching({"b": 1, "c": 2}, 1, overcommit=1.1))
    world.publish()
    while len(world.view.within("b").deferred) <= 2:
        sample = next(sample for sample in world.samples(SampleState.RUNNING) if world.domain_of(sample.row) == "b")
        world.finish(sample, version=99)
    deferred = list(world.view.within("b").deferred)
    world.run_until_training()
    world.train()
    world.publish()
    (round_,) = world.view.rounds.values()
    assert round_.kind is RoundKind.LONG
    assert list(round_.part("b").groups) == deferred[:1]
    assert len(round_.part("c").groups) == 2
    assert not set(round_.part("c").groups) & set(deferred)
    world.run()
    assert trained(world) == [Counter(b=1, c=2)] * 30


@settings(max_examples=examples(50))
@given(quotas=quotas_, overcommit=overcommits, seed=st.integers(0, 9999), synchronous=st.booleans())
def test_what_dynamic_sampling_drops_is_replaced_in_its_domain_and_never_queued(
    quotas: dict[str, int], overcommit: float, seed: int, synchronous: bool
) -> None:
    steps, pick = 5, random.Random(seed).choice
    if synchronous:
        rules = {domain: Synchronous(prompts, 2, True) for domain, prompts in quotas.items()}
        policy = ByDomain(sum(quotas.values()), 2, rules)
    else:
        policy = tail_batching(quotas, 2, overcommit, drop_zero_variance=True)

    def score(sample: SampleId) -> float:
        """Every third prompt teaches something at least, so that no domain runs out of draws."""
        teaches = (sample.epoch + sample.row) % 3 == 0 or random.Random(f"{seed} {sample.prompt}").random() < 0.6
        return float(sample.index and teaches)

    world = World(policy, 2, score, steps)
    world.start()
    world.run(pick)
    assert trained(world) == [Counter(quotas)] * steps
    dropped = {body.prompt for body in bodies(world, events.GroupDropped)}
    assert {body.reason for body in bodies(world, events.GroupDropped)} <= {DropReason.ZERO_VARIANCE}
    by_number = [event.body for event in world.log]
    for number, body in enumerate(by_number):
        if isinstance(body, events.GroupDropped):
            later = (b for b in by_number[number:] if isinstance(b, events.Launched | events.GroupDeferred))
            assert all(b.prompt != body.prompt for b in later)
    assert len(world.fate) == world.ledger.drawn - len(world.ledger.queue)
    assert not dropped & set(world.ledger.queue)


def test_a_grader_error_makes_its_domain_train_smaller() -> None:
    world = started(1, tail_batching({"b": 2, "c": 1}, 1))
    world.publish()
    for sample in world.samples(SampleState.RUNNING):
        world.finish(sample)
    first = next(sample for sample in world.samples(SampleState.GENERATED) if world.domain_of(sample.row) == "b")
    world.grade(first, GradeKind.GRADER_ERROR)
    world.run()
    assert trained(world) == [Counter(b=1, c=1)]


def test_a_long_round_starts_with_the_longest_attempts_of_all_domains() -> None:
    world = started(30, tail_batching({"b": 1, "c": 1}, 1, overcommit=2.0))
    world.publish()
    by_domain = {domain: [p for p in world.view.groups if world.domain_of(p.row) == domain] for domain in "bc"}
    for domain, tokens in (("b", 5), ("c", 9)):
        world.finish(SampleId(*by_domain[domain][0], 0, 0))
        assert world.record(events.Stopped(world.stopping.pop(), tokens, "engine-0"))
    world.run_until_training()
    world.train()
    world.publish()
    assert kinds(world) == [RoundKind.SHORT, RoundKind.LONG]
    assert list(world.view.groups) == [by_domain["c"][1], by_domain["b"][1]]


@pytest.mark.parametrize("seed", range(5))
def test_every_domain_wraps_its_own_epoch_and_no_prompt_comes_twice(seed: int) -> None:
    world = started(40, tail_batching({"a": 2, "b": 1}, 1, overcommit=1.5))
    world.run(random.Random(seed).choice)
    drawn: dict[str, list[PromptId]] = {"a": [], "b": []}
    for body in bodies(world, events.Drawn):
        drawn[body.domain] += body.prompts
    assert drawn["a"] == [(epoch, 0) for epoch in range(len(drawn["a"]))]
    assert drawn["b"] == [(number // 2, 1 + number % 2) for number in range(len(drawn["b"]))]


@pytest.mark.parametrize("drop", [False, True])
def test_a_driver_killed_at_any_event_loses_and_doubles_nothing(drop: bool) -> None:
    quotas = {"b": 1, "c": 2}
    whole = started(6, tail_batching(quotas, 2, 1.5, drop_zero_variance=drop))
    whole.run(random.Random(1).choice)
    for length in range(1, len(whole.log), 3):
        world = started(6, tail_batching(quotas, 2, 1.5, drop_zero_variance=drop))
        pick = random.Random(1).choice
        while len(world.log) < length:
            if running := world.samples(SampleState.RUNNING):
                world.finish(pick(running))
            elif generated := world.samples(SampleState.GENERATED):
                world.grade(pick(generated))
            elif not (world.train() or world.publish()):
                break
        world.start()
        world.run(pick)
        assert trained(world) == [Counter(quotas)] * 6
        assert len(world.fate) == world.ledger.drawn - len(world.ledger.queue)
