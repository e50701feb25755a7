from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.samples import SampleId, VersionSpan
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.engine import Response, SimulatedEngine

CURVE = StepCurve((1, 9), (1.0, 5.0))


def sample(number: int) -> SampleId:
    return SampleId(0, number, 0, 0)


def run_out(engine: SimulatedEngine) -> dict[SampleId, tuple[float, Response]]:
    """When each sample ended, and what came back."""
    found = {}
    while (end := engine.next_end()) < inf:
        for response in engine.ended(end):
            assert response.sample not in found
            found[response.sample] = end, response
    return found


@given(count=st.integers(1, 12), tokens=st.integers(1, 40), limit=st.integers(1, 9))
def test_equal_responses_come_in_waves(count: int, tokens: int, limit: int) -> None:
    engine = SimulatedEngine("e", limit, CURVE)
    for number in range(count):
        engine.submit(0.0, sample(number), tokens, 0)
    waves = [limit] * (count // limit) + [count % limit] * (count % limit > 0)
    ends = [end for end, _ in run_out(engine).values()]
    assert max(ends) == pytest.approx(sum(tokens * CURVE(wave) for wave in waves))


@given(st.data())
def test_every_sample_comes_back_once_with_no_more_than_its_tokens(data: st.DataObject) -> None:
    engine = SimulatedEngine("e", data.draw(st.integers(1, 5)), CURVE)
    engine.serve(0.0, 0)
    lengths: dict[SampleId, int] = {}
    back: dict[SampleId, Response] = {}
    now, version = 0.0, 0
    for number in range(data.draw(st.integers(1, 15))):
        now += data.draw(st.floats(0, 30))
        while engine.next_end() <= now:
            back.update((response.sample, response) for response in engine.ended(engine.next_end()))
        match data.draw(st.sampled_from(["submit", "submit", "stop", "publish"])):
            case "submit":
                lengths[sample(number)] = data.draw(st.integers(1, 30))
                engine.submit(now, sample(number), lengths[sample(number)], 3)
            case "stop" if left := sorted(lengths.keys() - back.keys()):
                chosen = data.draw(st.sampled_from(left))
                back[chosen] = engine.stop(now, chosen)
                assert back[chosen].tokens <= lengths[chosen]
                assert engine.stop(now, chosen) is None
            case "publish":
                engine.pause(now)
                assert engine.next_end() == inf
                version, now = version + 1, now + 5
                engine.serve(now, version)
    back.update((sample, response) for sample, (_, response) in run_out(engine).items())
    assert back.keys() == lengths.keys()
    for response in back.values():
        spans = response.spans
        assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
        assert (spans[-1].end if spans else 0) == response.tokens
        assert [span.version for span in spans] == sorted({span.version for span in spans})


def test_a_stopped_sample_has_the_tokens_of_the_steps_it_saw() -> None:
    engine = SimulatedEngine("e", 4, CURVE)
    engine.serve(0.0, 7)
    for number in range(2):
        engine.submit(0.0, sample(number), 10, 0)
    response = engine.stop(4.0, sample(0))
    assert response == Response(sample(0), 2, (VersionSpan(7, 0, 2),))
    assert engine.next_end() == pytest.approx(4.0 + (10 - 4.0 / 1.5) * 1.0)


def test_it_says_how_many_tokens_it_held_at_most() -> None:
    engine = SimulatedEngine("e", 4, CURVE)
    engine.submit(0.0, sample(0), 10, 5)
    engine.submit(0.0, sample(1), 2, 5)
    run_out(engine)
    assert engine.tokens_most == pytest.approx(15)
