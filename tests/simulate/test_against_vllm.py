"""The simulated engine does what vLLM's scheduler does: the same steps, preemptions, tokens computed again and ends, one for one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import floor, inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.paged_engine import PagedEngine
from tests.rollout.reference import request
from tests.simulate.vllm_scheduler import Arrival, Case, Scheduled, VllmScheduler
from tests.support.examples import examples
from tests.support.tiny_model import build_tiny_model

pytestmark = pytest.mark.extended

# What a computed token takes; a step takes 1. So the time of an end says in which step it was and how much had been computed.
TOKEN = 2.0**-20
LENGTH = 960


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmScheduler]:
    directory = build_tiny_model(tmp_path_factory.mktemp("model"))
    config = EngineConfig(
        "e", str(directory), "float32", 12, (0,), LENGTH, kv_cache_bytes=10 * 2**17, enforce_eager=True
    )
    scheduler = VllmScheduler(config)
    try:
        yield scheduler
    finally:
        scheduler.close()


def simulated(case: Case, prompt_tokens: int) -> tuple[list[tuple[SampleId, int, int]], int]:
    """Step and tokens computed until then of each turn's end, in the order of ends; and the preemptions."""
    model = EngineModel(case.blocks * case.block_size, TOKEN, (1,), (1,), ((1.0,),), case.block_size)
    engine = PagedEngine("e", case.limit, model, prompt_tokens=prompt_tokens)
    ends: list[tuple[SampleId, int, int]] = []
    # Of each turn: the step before which it comes, its sample, the tokens before it and its own, and the turns that follow.
    arrivals = [(each.step, each.sample, each.prompt_tokens, each.tokens, each.further) for each in case.arrivals]
    under_way: dict[SampleId, tuple[int, tuple[tuple[int, int, int], ...]]] = {}

    def until(step: float) -> None:
        """Everything before the step is scheduled: in the middle of the one before."""
        while (end := engine.next_end()) < step - 0.5:
            for response in engine.ended(end):
                ends.append((response.sample, floor(end), round((end - floor(end)) / TOKEN)))
                context, further = under_way[response.sample]
                if further:
                    (away, added, tokens), *rest = further
                    arrivals.append((floor(end) + away, response.sample, context + added, tokens, tuple(rest)))

    step = 0
    while len(ends) < sum(1 + len(arrival.further) for arrival in case.arrivals):
        until(step)
        # An engine that rests begins at once; the others count tokens from where they are.
        rests = engine.next_end() == inf
        now = step + (ends[-1][2] if ends else 0) * TOKEN if rests else step - 0.5
        for came, sample, context, tokens, further in arrivals:
            if came == step:
                under_way[sample] = context + tokens, further
                engine.submit(now, sample, tokens, context, returns=bool(further))
        if step in case.published:
            engine.pause(now)
            engine.serve(now, step)
        step += 1
    return ends, engine.take_load(1e9).preemptions


def as_simulated(real: Scheduled) -> list[tuple[SampleId, int, int]]:
    return [(sample, step, sum(real.computed[:step])) for sample, step in real.ended]


@pytest.mark.parametrize(("rows", "group", "prompt", "tokens"), [(12, 1, 8, 700), (4, 6, 300, 400), (2, 12, 40, 900)])
def test_an_engine_of_real_vllm(vllm: VllmScheduler, rows: int, group: int, prompt: int, tokens: int) -> None:
    requests = [
        request(row, index, tokens=tokens // (1 + (row + index) % 3)) for row in range(rows) for index in range(group)
    ]
    requests = [
        replace(of, prompt_ids=tuple(4 + (of.id.row * 7 + place * place) % 200 for place in range(prompt)))
        for of in requests
    ]
    real, lengths = vllm.run(requests)
    arrivals = tuple(Arrival(0, of.id, prompt, lengths[of.id]) for of in requests)
    case = Case(vllm.blocks, vllm.block_size, 12, arrivals)
    assert real.preemptions > 0
    assert simulated(case, prompt) == (as_simulated(real), real.preemptions)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, int]:
    size = draw(st.sampled_from([4, 16]))
    prompt = draw(st.integers(1, 40).filter(lambda tokens: tokens % size))
    longest = draw(st.sampled_from([20, 150]))
    lengths, further = st.integers(1, longest), draw(st.sampled_from([0, 2]))
    turns = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), lengths), max_size=further)
    needed = -(-(prompt + longest + further * (30 + longest)) // size)
    group = draw(st.integers(1, 6))
    count = draw(st.integers(1, 24))
    steps = sorted(draw(st.lists(st.sampled_from([0, 0, 0, 5, 30, 31]), min_size=count, max_size=count)))
    arrivals = tuple(
        Arrival(step, SampleId(0, number // group, 0, number % group), prompt, draw(lengths), tuple(draw(turns)))
        for number, step in enumerate(steps)
    )
    published = draw(st.frozensets(st.sampled_from([7, 30, 40]), max_size=2))
    blocks = draw(st.integers(needed + 1, 3 * needed + 1))
    return Case(blocks, size, draw(st.integers(1, 16)), arrivals, published), prompt


@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(cases())
def test_any_case(vllm: VllmScheduler, drawn: tuple[Case, int]) -> None:
    """Of prompts that don't end with a block. See below for those that do."""
    case, prompt = drawn
    real = vllm.schedule(case)
    assert simulated(case, prompt) == (as_simulated(real), real.preemptions)


@pytest.mark.parametrize("seed", range(5))
def test_prompts_that_end_with_a_block(vllm: VllmScheduler, seed: int) -> None:
    """Each sample of a group has its own copy of the prompt's last block; one that was preempted shares another's, which isn't modelled.

    So the simulated engine has a little less room. Here four times as many tokens want to run as there is room for, and evictions and
    so preemptions move; the whole takes nearly the same steps.
    """
    source = random.Random(seed)
    arrivals = tuple(
        Arrival(0, SampleId(0, number // 8, 0, number % 8), 64, source.randint(1, 600)) for number in range(64)
    )
    case = Case(200, 16, 32, arrivals)
    real = vllm.schedule(case)
    ends, preemptions = simulated(case, 64)
    assert {sample for sample, *_ in ends} == {sample for sample, _ in real.ended}
    assert ends[-1][1] == pytest.approx(real.ended[-1][1], rel=0.05)
    assert preemptions == pytest.approx(real.preemptions, rel=0.25)
