"""What holds of every engine with a KV cache; that it does what vLLM does is in test_against_vllm.py."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.engine import Response, SimulatedEngine
from longboat_runtime.simulate.kv_cache import KvCache
from longboat_runtime.simulate.paged_engine import PagedEngine
from longboat_runtime.simulate.step_series import StepLine, StepSeries

PROMPT = 5
ROOM = 10**6


def model(kv_tokens: int, prefill: float = 0.0) -> EngineModel:
    return EngineModel(kv_tokens, prefill, (1, 9), (1, 101), ((1.0, 2.0), (5.0, 7.0)))


def sample(number: int) -> SampleId:
    return SampleId(0, number // 3, 0, number % 3)


def run_out(engine: SimulatedEngine | PagedEngine) -> dict[SampleId, tuple[float, Response]]:
    """When each sample ended, and what came back."""
    found: dict[SampleId, tuple[float, Response]] = {}
    while (end := engine.next_end()) < inf:
        for response in engine.ended(end):
            assert response.sample not in found
            found[response.sample] = end, response
    return found


models = st.builds(
    lambda rows, columns, steps, prefill: EngineModel(
        ROOM,
        prefill,
        rows,
        columns,
        tuple(tuple(0.5 + row * steps[0] + column * steps[1] * row for column in columns) for row in rows),
    ),
    st.sampled_from([(1,), (1, 4), (2, 8, 64)]),
    st.sampled_from([(1,), (16, 100), (8, 30, 31, 200)]),
    st.tuples(st.floats(0, 2), st.floats(0, 0.1)),
    st.floats(0, 0.1),
)


@given(models, st.integers(1, 40), st.floats(1, 400), st.integers(0, 500), st.floats(0, 3))
def test_sums_of_steps_are_those_of_the_model(
    of: EngineModel, sequences: int, context: float, count: int, extra: float
) -> None:
    series = StepSeries(StepLine.from_model(of, sequences), context, extra)
    steps = [of.step_seconds(sequences, (context + step) * sequences) for step in range(count)]
    total = sum(steps) + (extra if count else 0)
    assert series.seconds(count) == pytest.approx(total, rel=1e-9)
    assert series.steps(series.seconds(count) + 1e-6) >= count
    assert series.steps(series.seconds(count + 1) - 1e-6) <= count


@given(st.data())
def test_nothing_is_lost_and_the_kv_cache_never_exceeded(data: st.DataObject) -> None:
    """Of any sequence of what may happen to an engine: everything comes back once, with its tokens, and all that was drawn is counted."""
    size, limit = data.draw(st.sampled_from([2, 16])), data.draw(st.integers(1, 8))
    engine = PagedEngine("e", limit, replace(model(40 * size), block_tokens=size), prompt_tokens=PROMPT)
    longest = 39 * size - PROMPT
    lengths: dict[SampleId, int] = {}
    back: dict[SampleId, Response] = {}
    now, version, drawn = 0.0, 0, 0
    for number in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.floats(0, 30))
        while engine.next_end() <= now:
            back.update((response.sample, response) for response in engine.ended(engine.next_end()))
            assert 0 <= engine.cache.free <= engine.cache.total
        match data.draw(st.sampled_from(["submit", "submit", "submit", "stop", "publish"])):
            case "submit":
                lengths[sample(number)] = data.draw(st.integers(1, longest))
                engine.submit(now, sample(number), lengths[sample(number)], PROMPT)
            case "stop" if left := sorted(lengths.keys() - back.keys()):
                chosen = data.draw(st.sampled_from(left))
                if response := engine.stop(now, chosen):
                    back[chosen] = response
                    assert response.tokens < lengths[chosen]
                    assert engine.stop(now, chosen) is None
                    lengths[chosen] = response.tokens
            case "publish":
                engine.pause(now)
                version, now = version + 1, now + 5
                engine.serve(now, version)
    back.update((of, response) for of, (_, response) in run_out(engine).items())
    assert {of: response.tokens for of, response in back.items()} == lengths
    for response in back.values():
        spans = response.spans
        assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
        assert (spans[-1].end if spans else 0) == response.tokens
        drawn += response.tokens
    assert engine.take_load(1e9).generated_tokens == drawn
    assert engine.cache.free == engine.cache.total


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 9))
def test_with_room_for_all_it_is_the_engine_without_a_kv_cache(lengths: list[int], limit: int) -> None:
    """Whose steps depend on the number of sequences alone."""
    curve = StepCurve((1, 9), (1.0, 5.0))
    flat = EngineModel(ROOM, 0.0, (1, 9), (1,), ((1.0,), (5.0,)))
    unlimited, paged = SimulatedEngine("e", limit, curve), PagedEngine("e", limit, flat, prompt_tokens=PROMPT)
    for number, tokens in enumerate(lengths):
        for engine in (unlimited, paged):
            engine.submit(0.0, sample(number), tokens, PROMPT)
    expected, found = run_out(unlimited), run_out(paged)
    assert {of: end for of, (end, _) in found.items()} == pytest.approx({of: end for of, (end, _) in expected.items()})
    assert paged.take_load(1e9).preemptions == 0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=24), st.integers(25, 300))
def test_kv_cache_costs_nothing_once_it_suffices_and_no_more_than_one_after_the_other(
    lengths: list[int], blocks: int
) -> None:
    """That more of it is never slower doesn't hold: who got in earlier may be preempted later (Belady's and Graham's anomalies).

    A step takes a second however many run. So a response never ends before its last token could be drawn; each step draws a token at
    least; and without a preemption, none that runs from the beginning ends later than that.
    """
    engine = PagedEngine("e", 256, EngineModel(16 * blocks, 0.0, (1,), (1,), ((1.0,),)), prompt_tokens=PROMPT)
    for number, tokens in enumerate(lengths):
        engine.submit(0.0, sample(number), tokens, PROMPT)
    ends = {of: end for of, (end, _) in run_out(engine).items()}
    load = engine.take_load(1e9)
    alone = {sample(number): float(tokens) for number, tokens in enumerate(lengths)}
    assert load.generated_tokens == sum(lengths), "what was preempted is computed again, not drawn again"
    assert all(ends[of] >= alone[of] - 1e-6 for of in alone)
    assert max(ends.values()) <= sum(lengths) + 1e-6
    needed = sum(engine.cache.blocks(PROMPT + tokens - 1) for tokens in lengths)
    if needed <= engine.cache.total:
        assert load.preemptions == 0
    if not load.preemptions and not load.waiting:
        assert ends == pytest.approx(alone)


def test_what_was_preempted_costs_time_again() -> None:
    """Two sequences of 32 tokens and room for 5 blocks of 8: the second is preempted, and computed again when the first has ended."""
    engine = PagedEngine("e", 2, EngineModel(48, 0.5, (1,), (1,), ((1.0,),), 8), prompt_tokens=1)
    for number in (0, 3):
        engine.submit(0.0, sample(number), 32, 1)
    ends = run_out(engine)
    # At the 17th step each needs a third block and there is one left, for the first. The second had 16 tokens and its prompt: it has lost
    # its two blocks to the first one, which needs a third and a fourth, but for the one that holds its beginning.
    assert ends[sample(0)][0] == pytest.approx(32 + 2 * 0.5)
    assert ends[sample(3)][0] == pytest.approx(32 + 2 * 0.5 + 16 + 9 * 0.5)
    load = engine.take_load(1e9)
    assert (load.preemptions, load.generated_tokens, load.waiting) == (1, 64, 1)


def test_a_sequence_that_can_never_fit_is_refused() -> None:
    engine = PagedEngine("e", 2, model(64), prompt_tokens=PROMPT)
    with pytest.raises(ValueError, match="don't fit"):
        engine.submit(0.0, sample(0), 48, PROMPT)
    with pytest.raises(ValueError, match="prompt"):
        engine.submit(0.0, sample(0), 4, 0)


def test_samples_of_a_prompt_share_its_full_blocks() -> None:
    cache = KvCache(10, 4, shared=9)
    assert cache.admit(sample(0), 9)
    assert cache.admit(sample(1), 9)
    assert cache.free == 10 - 2 - 2
    assert cache.cached_tokens(sample(2), 9) == 8
    cache.release(sample(0), 9, continues=False)
    cache.release(sample(1), 9, continues=False)
    assert (cache.free, cache.cached_tokens(sample(2), 9)) == (10, 8), "the blocks are there until they are taken"
    cache.take(9)
    assert cache.cached_tokens(sample(2), 9) == 4
