"""Simulated episodes: samples that draw tokens in turns, and are away in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.loop import Effects
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import SampleId, SegmentSize
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.paged_engine import PagedEngine
from longboat_runtime.simulate.shapes import Shapes
from longboat_runtime.simulate.simulation import Simulation, number_prompts, simulate
from longboat_runtime.simulate.site import Site
from longboat_runtime.simulate.turns import RecordedEpisodes, SampleDistribution, Turn, TwoLevelTurns
from tests.simulate.test_shapes import RESHAPE, THROUGHPUT, Alternating, planners
from tests.simulate.test_simulation import FLAT, AnyPolicy, policies, sites
from tests.support.examples import examples

EPISODES = TwoLevelTurns(TwoLevel(2, 0.4, 0.4, 6), TwoLevel(10, 0.8, 0.8, 100, 1), TwoLevel(0.5, 1, 1, 50, 2), 150, 7)


class Recorded(Simulation):
    """A simulation with all its events, run to its end."""

    def __init__(
        self, policy: Policy, group_size: int, site: Site, distribution: SampleDistribution, steps: int
    ) -> None:
        self.events: list[Event] = []
        self.most_playing = 0
        super().__init__(policy, group_size, site, distribution, steps, number_prompts)
        while self.proceed():
            self.most_playing = max(self.most_playing, len(self.fleet.playing))

    def carry_out(self, event: Event, effects: Effects) -> None:
        self.events.append(event)
        super().carry_out(event, effects)

    def bodies(self, *kinds: type) -> list:
        return [event.body for event in self.events if isinstance(event.body, kinds)]


curved = st.builds(
    lambda site, slots: Site(**{name: getattr(site, name) for name in site.__slots__} | {"slots": slots}),
    sites,
    st.sampled_from([None, 1, 5]),
)
shaped = st.builds(
    lambda planner, pods, latency, slots: Site(
        shapes=Shapes(THROUGHPUT, planner, 2, pods, RESHAPE),
        prompt_tokens=20,
        max_sequences=16,
        latency=latency,
        update=0.5,
        publish=0.3,
        flat=0.2,
        slots=slots,
    ),
    planners,
    st.integers(1, 2),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([None, 3]),
)


@settings(max_examples=examples(100))
@given(policies, curved | shaped, st.integers(1, 6), st.integers(0, 100))
def test_every_episode_ends_once_with_its_tokens(policy: AnyPolicy, site: Site, steps: int, seed: int) -> None:
    def turns(sample: SampleId) -> Sequence[Turn]:
        return EPISODES(sample._replace(epoch=seed))

    run = Recorded(policy, policy.group_size, site, turns, steps)
    assert [step.step for step in run.steps] == [*range(1, steps + 1)]
    assert all(before.time <= after.time for before, after in pairwise(run.events))
    ends = run.bodies(events.Generated, events.Stopped)
    ended = [end.sample for end in ends]
    paused = {body.sample for body in run.bodies(events.Paused)}
    # Nobody waits for the end of a surplus sample once its group is dropped.
    dropped = {(body.prompt, body.attempt) for body in run.bodies(events.GroupDropped)}
    aborted = {sample for body in run.bodies(events.Aborted) for sample in body.samples}
    unawaited = {sample for sample in aborted if (sample.prompt, sample.attempt) in dropped}
    launched = {
        SampleId(body.prompt.epoch, body.prompt.row, body.attempt, index)
        for body in run.bodies(events.Launched)
        for index in range(body.samples)
    }
    assert len(ended) == len({*ended})
    assert {*ended} <= launched <= {*ended} | paused | unawaited
    for end in ends:
        tokens = sum(turn.tokens for turn in turns(end.sample))
        whole = isinstance(end, events.Generated) or end.finished
        assert end.tokens == tokens if whole else end.tokens <= tokens
    assert run.most_playing <= (site.slots or len(launched))
    assert not run.fleet.playing
    assert sum(step.generated for step in run.steps) >= sum(step.kept for step in run.steps)
    assert Recorded(policy, policy.group_size, site, turns, steps).events == run.events, "the same again"


@settings(max_examples=examples(50))
@given(policies, curved | shaped, st.integers(1, 6), st.integers(0, 100))
def test_a_single_turn_is_a_plain_response(policy: AnyPolicy, site: Site, steps: int, seed: int) -> None:
    lengths = TwoLevel(10, 0.8, 0.8, 200, seed)
    plain = Recorded(policy, policy.group_size, site, lengths, steps)
    single = Recorded(policy, policy.group_size, site, lambda sample: [Turn(lengths(sample))], steps)
    assert single.events == plain.events
    assert single.steps == plain.steps


def test_a_round_of_equal_episodes_takes_what_arithmetic_says() -> None:
    episode = [Turn(10, 3.0, added=5), Turn(20, added=4), Turn(30, 0.5)]
    site = Site(FLAT, latency=0.1, prompt_tokens=8)
    run = Recorded(Synchronous(4, 4), 4, site, lambda _: episode, 2)
    for step in run.steps:
        assert step.rollout == pytest.approx(0.1 + 60 * 0.01 + 3.5 + 0.1)
        assert (step.trained, step.generated, step.kept) == (16, 16 * 60, 16 * 60)
    assert {body.segments for body in run.bodies(events.Generated)} == {(SegmentSize(8 + 60 + 5 + 4, 60),)}


def test_groups_start_in_order_as_slots_are_free() -> None:
    run = Recorded(Synchronous(3, 2), 2, Site(FLAT, slots=2), lambda _: [Turn(10, 1.0), Turn(10)], 1)
    assert [body.sample.row for body in run.bodies(events.Generated)] == [0, 0, 1, 1, 2, 2]
    assert run.steps[0].rollout == pytest.approx(3 * (20 * 0.01 + 1.0))


def test_seconds_away_decide_which_prompts_a_short_round_defers() -> None:
    """The first prompt draws less, but its environment takes long: it is stopped with what it had drawn, and has its turn in no engine."""

    def turns(sample: SampleId) -> list[Turn]:
        return [Turn(10, 100.0), Turn(10)] if sample.row == 0 else [Turn(30, 2.0), Turn(30)]

    run = Recorded(TailBatching(1, 2, 2.0, 1.0), 2, Site(FLAT), turns, 2)
    short, long = run.steps
    assert short.rollout == pytest.approx(60 * 0.01 + 2.0)
    assert long.rollout == pytest.approx(20 * 0.01 + 100.0)
    assert [(body.sample.row, body.tokens) for body in run.bodies(events.Stopped)] == [(0, 10), (0, 10)]


def test_a_reshape_continues_episodes_elsewhere() -> None:
    """In the middle of turns and between them; what was drawn isn't drawn again."""
    shapes = Shapes(THROUGHPUT, Alternating(), 2, 2, RESHAPE)
    site = Site(shapes=shapes, prompt_tokens=20, update=2.0, publish=0.2)
    run = Recorded(BoundedAsync(6, 4, 2), 4, site, EPISODES, 16)
    assert run.reshapes > 0
    moved = {body.sample: body.tokens for body in run.bodies(events.Moved)}
    firsts = [EPISODES(sample)[0].tokens for sample in moved]
    assert any(tokens == first for tokens, first in zip(moved.values(), firsts, strict=True)), "while it was away"
    assert any(tokens != first for tokens, first in zip(moved.values(), firsts, strict=True)), "within a turn"
    generated = {body.sample: body.tokens for body in run.bodies(events.Generated)}
    assert sum(step.generated for step in run.steps) == sum(step.kept for step in run.steps)
    assert all(generated[sample] >= tokens for sample, tokens in moved.items())


@pytest.mark.parametrize(("between", "computed"), [(0, 25 - 16), (3, 25 - 16), (24, 25 - 4), (28, 25)])
def test_what_is_left_of_its_blocks_in_the_prefix_cache_is_not_computed_again(between: int, computed: int) -> None:
    """A KV cache of 7 blocks of 4 tokens. A turn leaves 4 full ones; another sequence takes some of them, the last ones first."""
    engine = PagedEngine("e", 4, EngineModel(32, 0.5, (1,), (1,), ((1.0,),), 4))
    sample, other = SampleId(0, 0, 0, 0), SampleId(0, 1, 0, 0)
    engine.submit(0.0, sample, 10, 8, returns=True)
    [first] = engine.ended(engine.next_end()) or engine.ended(engine.next_end())
    assert (first.tokens, engine.cache.free) == (10, 7)
    now = 100.0
    if between:
        engine.submit(now, other, 1, between)
        while not engine.ended(engine.next_end()):
            pass
        now = 200.0
    engine.submit(now, sample, 2, 25)
    second = engine.ended(now)
    while not second:
        now = engine.next_end()
        second = engine.ended(now)
    assert now % 100 == pytest.approx(2 + 0.5 * computed)


def test_turns_are_drawn_by_ids_and_end_at_the_limit_of_all_tokens() -> None:
    episodes = [EPISODES(SampleId(0, row, 0, index)) for row in range(300) for index in range(4)]
    totals = [sum(turn.tokens for turn in turns) for turns in episodes]
    assert max(totals) == EPISODES.max_tokens
    assert {len(turns) for turns in episodes} == {*range(1, 7)}
    assert all(len({turn.seconds for turn in turns}) == len(turns) for turns in episodes)
    assert EPISODES(SampleId(0, 7, 0, 1)) == episodes[29]


def test_recorded_episodes_are_drawn_by_prompt() -> None:
    distribution = RecordedEpisodes.from_arrays(
        prompts=[4, 4, 9], turns=[1, 3, 2], tokens=[5, 10, 8], seconds=[0.0, 6.0, 1.0], added=[0, 7, 2]
    )
    plain, three = [Turn(5)], [Turn(3, 2.0, 2), Turn(3, 2.0, 2), Turn(4, 2.0, 3)]
    groups = [[distribution(SampleId(0, row, 0, index)) for index in range(2)] for row in range(40)]
    assert all(group in ([plain, three], [three, plain], [[Turn(4, 0.5, 1)] * 2] * 2) for group in groups)
    assert len({str(group) for group in groups}) == 3
    with pytest.raises(ValueError, match="must have a turn"):
        RecordedEpisodes.from_arrays([1], [0], [5], [0.0], [0])
    with pytest.raises(ValueError, match="must be an episode"):
        RecordedEpisodes.from_arrays([], [], [], [], [])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="a turn has a token"):
        Turn(0)
    with pytest.raises(ValueError, match="a turn has a token"):
        Turn(1, -1.0)
    with pytest.raises(ValueError, match="slots"):
        Site(FLAT, slots=0)
    with pytest.raises(ValueError, match="needs a turn"):
        simulate(Synchronous(1, 2), 2, Site(FLAT), lambda _: [], 1)
